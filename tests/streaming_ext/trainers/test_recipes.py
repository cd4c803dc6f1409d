"""The recipes of docs/training.md, run as they stand there."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenLoader
from tests.streaming_ext.build import Built
from tests.streaming_ext.trainers.recipes import ROOT, recipe


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


class TestTorchrun:
    STEPS = 100  # an epoch has 73

    def start(self, script: Path, data: Path, checkpoint: Path, ranks: int) -> Any:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", str(ranks), str(script), str(data), str(checkpoint),
            str(self.STEPS),
        ]  # fmt: skip
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip

    def losses(self, process: Any, *, kill_after: int | None = None) -> dict[int, float]:
        losses = {}
        with process:
            for line in process.stdout:
                entry = json.loads(line)
                losses[entry["step"]] = entry["loss"]
                if entry["step"] == kill_after:
                    for pid in [*descendants(process.pid), process.pid]:
                        os.kill(pid, signal.SIGKILL)
            assert process.wait(240) == (0 if kill_after is None else -signal.SIGKILL)
        return losses

    def test_killed_on_two_ranks_and_resumed_on_one(self, raw: Built, tmp_path: Path) -> None:
        script = recipe("torchrun", tmp_path)
        whole = self.losses(self.start(script, raw.root, tmp_path / "whole", 2))
        assert sorted(whole) == list(range(1, self.STEPS + 1))
        assert len(set(whole.values())) == self.STEPS
        broken = self.losses(self.start(script, raw.root, tmp_path / "broken", 2), kill_after=40)
        assert 40 <= max(broken) < 73  # in the middle of the first epoch
        rest = self.losses(self.start(script, raw.root, tmp_path / "broken", 1))
        assert min(rest) in (max(broken), max(broken) + 1)
        resumed = broken | rest
        assert resumed == pytest.approx(whole, rel=1e-9)


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
        script = recipe("lightning", tmp_path)
        assert seen(script, raw.root, tmp_path, 10, 2) == undisturbed[:10]
        rest = seen(script, raw.root, tmp_path, 90, 1, tmp_path / "10.ckpt")
        assert rest == undisturbed[10:]

    @pytest.mark.soak  # most of its half minute is its library's start, on each of three ranks
    def test_transformers(self, raw: Built, undisturbed: list[list[int]], tmp_path: Path) -> None:
        script = recipe("transformers", tmp_path)
        two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        assert seen(script, raw.root, tmp_path, 10, launcher=two) == undisturbed[:10]
        rest = seen(script, raw.root, tmp_path, 90, tmp_path / "checkpoint-10")
        assert rest == undisturbed[10:]
