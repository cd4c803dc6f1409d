"""`shardmill submit` follows its run on a real server; the test plays the worker."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Completed, Failed

from flows import submit
from flows.dashboard.updates import METADATA, PROGRESS, SNAPSHOT
from flows.submit import Follower, changed, ended_for_wrong_usage, start
from flows.terminal.run_progress import describe
from streaming_ext.base.errors import LostSightError, ShardmillError, UsageError
from tasks.core.config import ExtendConfig
from tests.command_line import ended_as, wait_for
from tests.flows.terminal.test_run_progress import snapshot
from tests.servers.prefect.server import ask, free_port
from tests.servers.scripted import Answer, scripted

SHARD = {"sources": ["a"], "output": "s3://bucket/x", "tokenizer": "gpt2"}
EXPORT = {"format": "nanogpt", "dataset": "s3://bucket/x", "output": "s3://bucket/y"}


class Worker:
    """Sends the server what a worker reports about a deployment's run."""

    def __init__(
        self,
        api: str,
        name: str,
        flow: str = "shard-dataset",
        config: Mapping[str, object] = SHARD,
        **parameters: str,
    ) -> None:
        self.api = api
        self.flow = self.post("flows/", name=flow)["id"]
        self.deployment = self.post(
            "deployments/",
            name=name,
            flow_id=self.flow,
            parameters={"config": config, **parameters},
        )["id"]

    def post(self, path: str, **body: Any) -> Any:
        return ask("POST", f"{self.api}/{path}", **body)

    def run(self) -> str:
        """Wait for the requested run and return its id."""
        mine = {"deployments": {"id": {"any_": [self.deployment]}}}
        found: list[str] = []
        wait_for(
            lambda: (
                found or found.extend(each["id"] for each in self.post("flow_runs/filter", **mine))
            )
        )
        return found[0]

    def state(self, run: str, kind: str, message: str = "") -> None:
        state = {"type": kind, "name": kind.capitalize(), "message": message}
        self.post(f"flow_runs/{run}/set_state", state=state, force=True)


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        ("COMPLETED", "6 parts", 0),
        ("FAILED", "1 of 6 parts failed: a.parquet: damaged", 1),
        ("CANCELLED", "", 143),
    ],
)
def test_submit_follows_the_run_and_ends_as_shard_does(
    served, api_url, kind, message, code
) -> None:
    worker = Worker(api_url, f"of-{kind}-{code}".lower())
    submitted = served.where(SHARDMILL_LINE_SECONDS="0.2").start(
        "submit", f"of-{kind}-{code}".lower(), "workers=3", "--json"
    )
    run = worker.run()
    worker.state(run, "RUNNING")
    worker.post(
        "artifacts/",
        key=PROGRESS,
        type="progress",
        data=25.0,
        flow_run_id=run,
        metadata_={METADATA: SNAPSHOT.dump_json(snapshot()).decode()},
    )
    assert submitted.stderr is not None
    lines = []
    for line in submitted.stderr:
        lines.append(line)
        if "1/4 parts" in line:
            break
    worker.state(run, kind, message)
    stdout, _ = ended_as(submitted, code)
    assert "sharding: 1/4 parts, 0:00:06 left, 7.5M tokens, 15.0 MB/s" in lines[-1]
    assert "Running: -" not in "".join(lines)
    address = f"{api_url.removesuffix('/api')}/runs/flow-run/{run}"
    assert f"Prefect shows this run at {address}\n" in lines
    found = json.loads(stdout)
    assert (found["flow_run"], found["message"] or "") == (run, message)


def test_every_deployment_by_its_name(api_url) -> None:
    """A deployment may be of another flow; the settings are those of its own flow."""
    words = uuid4().hex[:8]
    export = Worker(api_url, f"export-{words}", "export-dataset", EXPORT)
    for flow in ("shard-dataset", "export-dataset"):
        Worker(api_url, f"both-{words}", flow, SHARD if flow == "shard-dataset" else EXPORT)
    Worker(api_url, f"other-{words}", "their-flow", {})
    with (
        temporary_settings({PREFECT_API_URL: api_url}),
        get_client(sync_client=True) as client,
    ):
        follower = start(client, f"export-{words}", ["format=megatron"])
        assert str(follower.run) == export.run()
        config = client.read_flow_run(follower.run).parameters["config"]
        assert config["format"] == "megatron"
        assert start(client, f"export-dataset/both-{words}", ()).run != follower.run
        for name, settings, message in (
            (f"both-{words}", (), f"of several flows. Give one of .*-dataset/both-{words}"),
            (f"exprot-{words}", (), f"no such deployment. Did you mean export-{words}\\?"),
            (f"other-{words}", (), "is of the flow their-flow; expected shard-dataset"),
            (f"export-{words}", ("tokenizer=gpt2",), "\ntokenizer is no field"),
            (f"export-{words}", ("outptu=x",), "\noutptu is .* here. Did you mean output\\?$"),
            (f"shard-dataset/both-{words}", ("sources=3",), "\\nsources: must be a list, got 3$"),
            (f"export-{words}", ("format=nanogtp",), "got 'nanogtp'. Did you mean nanogpt\\?$"),
        ):
            with pytest.raises(UsageError, match=message):
                start(client, name, settings)
    assert changed(ExtendConfig, {}, ["dataset=/a", "sources=b"])["sources"] == ["b"]


@pytest.mark.parametrize(
    ("flow", "config", "field"),
    [
        ("shard-dataset", SHARD, "output"),
        ("export-dataset", EXPORT, "output"),
        ("extend-dataset", {"sources": ["a"], "dataset": "/x"}, "dataset"),
    ],
)
@pytest.mark.parametrize("settings", [(), ("s3://bucket/other",)])
def test_a_setting_goes_before_the_output_of_a_deployment(
    api_url, flow, config, field, settings
) -> None:
    name = uuid4().hex
    worker = Worker(api_url, name, flow, config, output="s3://bucket/deployed")
    with temporary_settings({PREFECT_API_URL: api_url}), get_client(sync_client=True) as client:
        start(client, name, [f"{field}={each}" for each in settings])
        parameters = client.read_flow_run(UUID(worker.run())).parameters
    expected = [*settings, "s3://bucket/deployed"][0]
    assert (parameters["config"][field], parameters["output"]) == (expected, None)


def test_which_failures_are_wrong_usage() -> None:
    said = "Flow run encountered an exception: TokenizerError: no such encoding"
    assert ended_for_wrong_usage(Failed(message=said))
    assert not ended_for_wrong_usage(Failed(message="1 of 2 parts failed: UsageError: x"))
    assert not ended_for_wrong_usage(Completed(message=said))
    assert not ended_for_wrong_usage(Cancelled(message=said))


def test_a_run_that_is_deleted_is_not_followed(api_url) -> None:
    worker = Worker(api_url, f"of-{uuid4()}")
    body = {"flow_id": worker.flow, "deployment_id": worker.deployment}
    run = UUID(worker.post("flow_runs/", **body)["id"])
    ask("DELETE", f"{api_url}/flow_runs/{run}")
    with (
        temporary_settings({PREFECT_API_URL: api_url, PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True) as client,
        pytest.raises(LostSightError, match="was deleted"),
    ):
        Follower(client, run, pool="y").follow()


def test_a_server_that_refuses_is_not_followed_for_ever() -> None:
    words = "refuses: 401 Unauthorized"
    answer = Answer(401, b"{}", {"Content-Type": "application/json"})
    with (
        scripted(lambda *_: answer) as server,
        temporary_settings({PREFECT_API_URL: f"{server.url}/api"}),
        get_client(sync_client=True) as client,
    ):
        follower = Follower(client, uuid4(), pool="y")
        with pytest.raises(LostSightError, match=words):
            follower.follow()
        with pytest.raises(LostSightError, match=words):
            follower.cancel()
        with pytest.raises(ShardmillError, match=words):
            start(client, "fineweb", ())


def test_a_server_that_is_gone_is_reported_and_given_up(monkeypatch) -> None:
    monkeypatch.setattr(submit, "SILENT_SECONDS", 0.5)
    run = uuid4()
    url = f"http://127.0.0.1:{free_port()}/api"
    with (
        temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True) as client,
    ):
        follower = Follower(client, run, pool="y")
        with pytest.raises(LostSightError) as raised:
            follower.follow()
    assert f"at {url} does not answer" in str(raised.value)
    assert f"The run {run} may continue" in str(raised.value)
    assert "has not answered for" in describe(follower.snapshot())
