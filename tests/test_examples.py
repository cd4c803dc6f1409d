"""Every program in examples/ is run."""

import io
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from prefect.client.orchestration import SyncPrefectClient

from tests.command_line import wait_for
from tests.flows.conftest import Command, shardmill  # noqa: F401

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_all_examples_are_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        assert path.name == "README.md" or f"]({path.name})" in listed


def test_shard_yaml(
    shardmill: Command,  # noqa: F811
    vocabulary: Path,
    sources: Path,
    tmp_path: Path,
) -> None:
    named = ["--tokenizer", vocabulary, "--pattern", "gpt2", "--output", tmp_path / "out"]
    config = EXAMPLES / "shard.yaml"
    ended = shardmill("shard", sources, *named, "--config", config, "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert "1,024 tokens" in ended.stdout


def test_shard_and_train(
    environment: dict[str, str], api_url: str, vocabulary: Path, sources: Path, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, EXAMPLES / "shard_and_train.py", sources, tmp_path / "out", vocabulary],
        env=environment | {"PREFECT_API_URL": api_url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "third batch (4, 128) the same after a resume: True" in ended.stdout


def test_train_small_gpt(dataset: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """docs/start/first-training-run.md: killed and resumed, its losses are those of one run."""
    program = EXAMPLES / "train_small_gpt.py"

    def train(checkpoint: str, steps: int) -> list[float]:
        named = [str(program), str(dataset), str(tmp_path / checkpoint), "--steps", str(steps)]
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
            patch.setattr(sys, "argv", named)
            runpy.run_path(str(program), run_name="__main__")
        return [float(line.split()[-1]) for line in printed.getvalue().splitlines()
                if line.startswith("step")]  # fmt: skip

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    undisturbed = train("a.pt", 40)
    assert undisturbed[0] - undisturbed[-1] > 0.3
    command = [sys.executable, program, dataset, tmp_path / "b.pt", "--steps", "40"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # cores are shared with other tests
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=one_thread) as process:
        for line in process.stdout or ():
            if line.startswith("step 20"):
                process.kill()
                break
    assert process.returncode == -signal.SIGKILL
    assert train("b.pt", 40) == pytest.approx(undisturbed[1:], abs=2e-3)


class _Receiver(BaseHTTPRequestHandler):
    received: list[str] = []  # noqa: RUF012

    def do_POST(self) -> None:
        """Keep the text of the alert."""
        self.received.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def webhook() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def test_alerts(environment: dict[str, str], api_url: str, webhook: str) -> None:
    for _ in range(2):  # the second time changes it
        ended = subprocess.run(
            [sys.executable, EXAMPLES / "alerts.py", webhook],
            env=environment | {"PREFECT_API_URL": api_url},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
    client = SyncPrefectClient(api_url)  # it repeats a request if the server is busy
    (automation,) = client.read_automations()
    assert automation.name == "shardmill-alerts"
    for flow, state in (("another-flow", "FAILED"), ("shard-dataset", "CANCELLED"),
                        ("shard-dataset", "FAILED")):  # fmt: skip
        flow_id = client.request("POST", "/flows/", json={"name": flow}).json()["id"]
        run = {
            "flow_id": flow_id,
            "name": f"{flow} {state}: a.parquet",
            "state": {"type": "RUNNING"},
        }
        run_id = client.request("POST", "/flow_runs/", json=run).json()["id"]
        changed = {"state": {"type": state, "name": state.capitalize()}, "force": True}
        client.request("POST", f"/flow_runs/{run_id}/set_state", json=changed)
    wait_for(lambda: _Receiver.received, seconds=60)
    assert _Receiver.received == ['{"text": "shard-dataset FAILED: a.parquet: Failed"}']
    client.delete_automation(automation.id)
