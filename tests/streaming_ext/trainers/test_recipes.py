"""The programs of docs/how-to/trainers that train from beginning to end."""

import builtins
import json
import math
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from streaming_ext import StreamingTokenLoader
from tests.servers.prefect.server import free_port
from tests.streaming_ext.trainers.recipes import ROOT, recipe


class TestTorchrun:
    """Its ranks are forked from this process, which has imported what they need."""

    STEPS = 100  # an epoch has 73

    def run(
        self, rank: int, ranks: int, port: int, paths: Sequence[Path], losses: Any, stop: int
    ) -> None:
        """What torchrun has a rank do; rank 0 is killed once it has printed step `stop`."""
        torch.set_num_threads(1)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(port))  # fmt: skip

        def printed(line: str, *, flush: bool) -> None:
            entry = json.loads(line)
            losses[entry["step"]] = entry["loss"]
            if entry["step"] == stop:
                os.kill(os.getpid(), signal.SIGKILL)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(builtins, "print", printed)
            patch.setattr(sys, "argv", [*map(str, paths), str(self.STEPS)])
            runpy.run_path(str(paths[0]), run_name="__main__")

    def losses(self, ranks: int, *paths: Path, stop: int = -1) -> dict[int, float]:
        """What the recipe tells until it ends, or all ranks are killed at a step."""
        context = multiprocessing.get_context("fork")
        found = context.Array("d", [math.nan] * (self.STEPS + 1))
        same = (ranks, free_port(), paths, found, stop)
        processes = [context.Process(target=self.run, args=(rank, *same)) for rank in range(ranks)]
        for process in processes:
            process.start()
        processes[0].join()
        for process in processes[1:]:
            process.kill()
            process.join()
        assert processes[0].exitcode == (0 if stop < 0 else -signal.SIGKILL)
        return {step: loss for step, loss in enumerate(found) if not math.isnan(loss)}

    def test_killed_on_two_ranks_and_resumed_on_one(self, raw, tmp_path) -> None:
        script = recipe("torchrun_train", tmp_path)
        whole = self.losses(1, script, raw.root, tmp_path / "whole")
        assert list(whole) == list(range(1, self.STEPS + 1))
        assert len(set(whole.values())) == self.STEPS
        broken = self.losses(2, script, raw.root, tmp_path / "broken", stop=40)
        assert list(broken) == list(range(1, 41))  # in the middle of the first epoch
        rest = self.losses(1, script, raw.root, tmp_path / "broken")
        assert list(rest) == list(range(41, self.STEPS + 1))
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
    def test_lightning(self, raw, undisturbed, tmp_path) -> None:
        script = recipe("lightning_train", tmp_path)
        assert seen(script, raw.root, tmp_path, 10, 2) == undisturbed[:10]
        rest = seen(script, raw.root, tmp_path, 90, 1, tmp_path / "10.ckpt")
        assert rest == undisturbed[10:]

    @pytest.mark.soak  # most of its half minute is its library's start, on each of three ranks
    def test_transformers(self, raw, undisturbed, tmp_path) -> None:
        script = recipe("huggingface_train", tmp_path)
        two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        assert seen(script, raw.root, tmp_path, 10, launcher=two) == undisturbed[:10]
        rest = seen(script, raw.root, tmp_path, 90, tmp_path / "checkpoint-10")
        assert rest == undisturbed[10:]
