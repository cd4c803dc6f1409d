"""`shardmill submit` follows its run: the test plays the worker, on a real server."""

import json
from typing import Any

import httpx
import pytest
from prefect.states import Cancelled, Completed, Failed

from flows.dashboard.followed import PROGRESS, to_metadata
from flows.submit import ended_for_wrong_usage
from tests.command_line import CommandLine, wait_for
from tests.flows.terminal.test_run_progress import snapshot


class Worker:
    """What a worker tells the server of a deployment's run."""

    def __init__(self, api: str, name: str) -> None:
        self.api = api
        flow = self.post("flows/", name="shard-dataset")["id"]
        config = {"sources": ["a"], "output": "s3://bucket/x", "tokenizer": "gpt2"}
        self.deployment = self.post(
            "deployments/", name=name, flow_id=flow, parameters={"config": config}
        )["id"]

    def post(self, path: str, **body: Any) -> Any:
        answer = httpx.post(f"{self.api}/{path}", json=body, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def run(self) -> str:
        """The run that was asked for, once it is there."""
        mine = {"deployments": {"id": {"any_": [self.deployment]}}}
        found: list[str] = []
        wait_for(lambda: found or found.extend(
            each["id"] for each in self.post("flow_runs/filter", **mine)))  # fmt: skip
        return found[0]

    def state(self, run: str, kind: str, message: str = "") -> None:
        state = {"type": kind, "name": kind.capitalize(), "message": message}
        self.post(f"flow_runs/{run}/set_state", state=state, force=True)


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        ("COMPLETED", "6 files", 0),
        ("FAILED", "1 of 6 files failed: a.parquet: damaged", 1),
        ("FAILED", "Flow run encountered an exception: ConfigMismatchError: x", 2),
        ("CANCELLED", "", 143),
    ],
)
def test_submit_follows_the_run_and_ends_as_shard_does(
    served: CommandLine, api_url: str, kind: str, message: str, code: int
) -> None:
    worker = Worker(api_url, f"of-{kind}-{code}".lower())
    submitted = served.where(SHARDMILL_LINE_SECONDS="0.2").start(
        "submit", f"of-{kind}-{code}".lower(), "workers=3", "--json"
    )
    run = worker.run()
    worker.state(run, "RUNNING")
    worker.post(
        "artifacts/", key=PROGRESS, type="progress", data=25.0, flow_run_id=run,
        metadata_=to_metadata(snapshot()),
    )  # fmt: skip
    assert submitted.stderr is not None
    lines = []
    for line in submitted.stderr:
        lines.append(line)
        if "1/4 files" in line:
            break
    worker.state(run, kind, message)
    stdout, stderr = submitted.communicate(timeout=60)
    assert submitted.returncode == code, stderr
    assert "sharding: 1/4 files, 7.5M tokens, 15.0 MB/s, 0:00:06 left" in lines[-1]
    assert "Running: -" not in "".join(lines)
    found = json.loads(stdout)
    assert (found["flow_run"], found["message"] or "") == (run, message)


def test_failures_of_usage_are_told_from_others() -> None:
    said = "Flow run encountered an exception: TokenizerError: no such encoding"
    assert ended_for_wrong_usage(Failed(message=said))
    assert not ended_for_wrong_usage(Failed(message="1 of 2 files failed: UsageError: x"))
    assert not ended_for_wrong_usage(Completed(message=said))
    assert not ended_for_wrong_usage(Cancelled(message=said))
