"""Every program in examples/, run."""

import io
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from prefect.client.orchestration import SyncPrefectClient

from flows.terminal.run_progress import LINE_SECONDS
from tests.command_line import (
    PATIENCE_SECONDS,
    CommandLine,
    in_kernel,
    output_of,
    succeeded,
    wait_for,
)
from tests.flows.conftest import Command, shardmill  # noqa: F401
from tests.servers.scripted import Answer, scripted
from tests.warm import start_module

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_all_examples_are_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        assert path.name == "README.md" or f"]({path.name})" in listed


def test_shard_yaml(
    shardmill,  # noqa: F811
    vocabulary,
    sources,
    tmp_path,
) -> None:
    named = ["--tokenizer", vocabulary, "--pattern", "gpt2", "--output", tmp_path / "out"]
    config = EXAMPLES / "shard.yaml"
    ended = succeeded(shardmill("shard", sources, *named, "--config", config, "--dry-run"))
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert ["sequence", "length", "1024"] in lines


def run_example(command: CommandLine, name: str, *arguments: object) -> str:
    """Run a program of examples/ and return what it prints."""
    words = [str(EXAMPLES / name), *map(str, arguments)]
    with start_module("tests.warm.script", words, command.env) as process:
        stdout, stderr = output_of(process, seconds=PATIENCE_SECONDS)
    assert process.returncode == 0, stderr
    return stdout


def test_shard_and_train(served, tmp_path) -> None:
    cells = json.loads((EXAMPLES / "shard_and_train.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    often = {**served.env, LINE_SECONDS: "0.05"}
    printed = in_kernel(*code, env=often, folder=tmp_path)
    assert "Dataset(" in printed
    assert "MB/s\\n━" in printed or "MB/s\\n┈" in printed, "a bar in its own place"
    assert "MB/s\n" not in printed, "no lines of progress beside it"
    assert "steps after the resume" in printed


def test_train_small_gpt(dataset, tmp_path, request) -> None:
    """docs/start/first-training-run.md: a kill and a resume leave the losses of one run."""
    program = EXAMPLES / "train_small_gpt.py"
    own = shutil.copytree(dataset, tmp_path / "dataset")  # training unpacks shards beside it

    def train(checkpoint: str, steps: int) -> list[float]:
        named = [str(program), str(own), str(tmp_path / checkpoint), "--steps", str(steps)]
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
            patch.setattr(sys, "argv", named)
            runpy.run_path(str(program), run_name="__main__")
        return [
            float(line.split()[-1])
            for line in printed.getvalue().splitlines()
            if line.startswith("step")
        ]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    undisturbed = train("a.pt", 40)
    assert undisturbed[0] - undisturbed[-1] > 0.3
    command = [sys.executable, program, own, tmp_path / "b.pt", "--steps", "40"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # cores are shared with other tests
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=one_thread) as process:
        for line in process.stdout or ():
            if line.startswith("step 20"):
                process.kill()
                break
    assert process.returncode == -signal.SIGKILL
    assert train("b.pt", 40) == pytest.approx(undisturbed[1:], abs=2e-3)


def test_interrupting_the_training_says_how_to_go_on(dataset, tmp_path) -> None:
    program = EXAMPLES / "train_small_gpt.py"
    own = shutil.copytree(dataset, tmp_path / "dataset")
    command = [sys.executable, program, own, tmp_path / "a.pt", "--steps", "100000"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipe, text=True, env=one_thread) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("step 20")
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, errors
    assert printed.splitlines()[-1] == "Stopped. Run it again: it resumes from the checkpoint."
    assert "Traceback" not in errors


def test_alerts(served, api_url) -> None:
    client = SyncPrefectClient(api_url)  # it repeats a request if the server is busy
    with scripted(lambda *_: Answer()) as webhook:
        for _ in range(2):  # the second call changes the automation
            run_example(served, "alerts.py", webhook.url)
        (automation,) = client.read_automations()
        assert automation.name == "shardmill-alerts"
        for flow, state in (
            ("another-flow", "FAILED"),
            ("shard-dataset", "CANCELLED"),
            ("shard-dataset", "FAILED"),
        ):
            flow_id = client.request("POST", "/flows/", json={"name": flow}).json()["id"]
            run = {
                "flow_id": flow_id,
                "name": f"{flow} {state}: a.parquet",
                "state": {"type": "RUNNING"},
            }
            run_id = client.request("POST", "/flow_runs/", json=run).json()["id"]
            changed = {"state": {"type": state, "name": state.capitalize()}, "force": True}
            client.request("POST", f"/flow_runs/{run_id}/set_state", json=changed)
        failed = b'{"text": "shard-dataset FAILED: a.parquet: Failed"}'
        wait_for(lambda: failed in webhook.bodies, seconds=60)
        client.delete_automation(automation.id)
    # Runs of other tests may fail meanwhile.
    assert [body for body in webhook.bodies if b": a.parquet:" in body] == [failed]
