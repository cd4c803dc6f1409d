"""The programs of docs/how-to/trainers that train from beginning to end."""

import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenLoader
from tests.streaming_ext.build import Built
from tests.streaming_ext.processes import in_processes
from tests.streaming_ext.trainers.recipes import ROOT, recipe


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


# Put before the recipe: rank 0 waits for its end where it told of a step, and so do the others.
WAIT_AFTER = """
import builtins, json, time

def told(line, flush, told=builtins.print):
    told(line, flush=flush)
    if json.loads(line)["step"] == {step}:
        time.sleep(300)

builtins.print = told
"""


class TestTorchrun:
    STEPS = 100  # an epoch has 73

    def alone(self, _: int, script: Path, data: Path, checkpoint: Path) -> dict[int, float]:
        """What the recipe tells as the only rank, in a process that has imported what it needs."""
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        sys.argv = [str(script), str(data), str(checkpoint), str(self.STEPS)]
        told = io.StringIO()
        with redirect_stdout(told):
            runpy.run_path(str(script), run_name="__main__")
        entries = [json.loads(line) for line in told.getvalue().splitlines()]
        return {entry["step"]: entry["loss"] for entry in entries}

    def killed(self, step: int, script: Path, data: Path, checkpoint: Path) -> dict[int, float]:
        """What it tells on two ranks of torchrun until they are killed, which is at a step."""
        paused = script.with_name("paused.py")
        paused.write_text(WAIT_AFTER.format(step=step) + script.read_text())
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", "2", str(paused), str(data), str(checkpoint), str(self.STEPS),
        ]  # fmt: skip
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        losses = {}
        with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
            for line in process.stdout or ():
                entry = json.loads(line)
                losses[entry["step"]] = entry["loss"]
                if entry["step"] == step:
                    for pid in [*descendants(process.pid), process.pid]:
                        os.kill(pid, signal.SIGKILL)
            assert process.wait(240) == -signal.SIGKILL
        return losses

    def test_killed_on_two_ranks_and_resumed_on_one(self, raw: Built, tmp_path: Path) -> None:
        script = recipe("torchrun_train", tmp_path)
        (whole,) = in_processes(1, self.alone, script, raw.root, tmp_path / "whole")
        assert sorted(whole) == list(range(1, self.STEPS + 1))
        assert len(set(whole.values())) == self.STEPS
        broken = self.killed(40, script, raw.root, tmp_path / "broken")
        assert sorted(broken) == list(range(1, 41))  # in the middle of the first epoch
        (rest,) = in_processes(1, self.alone, script, raw.root, tmp_path / "broken")
        assert sorted(rest) == list(range(41, self.STEPS + 1))
        assert broken | rest == pytest.approx(whole, rel=1e-9)


def seen(script: Path, *arguments: object, launcher: Sequence[str] = ()) -> list[list[int]]:
    """Run a recipe; the sequences of its steps over all ranks, sorted."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps: dict[int, list[int]] = {}
    for line in re.findall(r"\{\"step\".*?\}", done.stdout):  # two ranks may write into one line
        entry = json.loads(line)
        steps.setdefault(entry["step"], []).extend(entry["seen"])
    assert list(steps) == list(range(min(steps), max(steps) + 1))
    return [sorted(each) for each in steps.values()]


class TestTrainers:
    """Ten steps on two ranks, eighty more on one: what an undisturbed run sees."""

    @pytest.fixture
    def undisturbed(self, open_raw: Any) -> list[list[int]]:
        loader = StreamingTokenLoader(open_raw(batch_size=8, shuffle_block_size=1 << 18))
        epochs = [sorted(b["sequence_ids"].tolist()) for _ in range(2) for b in loader]
        return epochs[:90]

    @pytest.mark.soak
    def test_lightning(self, raw: Built, undisturbed: list[list[int]], tmp_path: Path) -> None:
        script = recipe("lightning_train", tmp_path)
        assert seen(script, raw.root, tmp_path, 10, 2) == undisturbed[:10]
        rest = seen(script, raw.root, tmp_path, 90, 1, tmp_path / "10.ckpt")
        assert rest == undisturbed[10:]

    @pytest.mark.soak  # most of its half minute is its library's start, on each of three ranks
    def test_transformers(self, raw: Built, undisturbed: list[list[int]], tmp_path: Path) -> None:
        script = recipe("huggingface_train", tmp_path)
        two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        assert seen(script, raw.root, tmp_path, 10, launcher=two) == undisturbed[:10]
        rest = seen(script, raw.root, tmp_path, 90, tmp_path / "checkpoint-10")
        assert rest == undisturbed[10:]
