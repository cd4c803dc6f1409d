"""The recipes of docs/training.md, run as they stand there."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenLoader
from tests.streaming_ext.build import Built

ROOT = Path(__file__).parents[2]


def recipe(name: str, folder: Path) -> Path:
    """Write a recipe of the documentation to a file."""
    text = (ROOT / "docs/training.md").read_text()
    (block,) = re.findall(rf"```python\n(# recipe: {name}\n.*?)```", text, flags=re.DOTALL)
    path = folder / f"{name}_recipe.py"
    path.write_text(block)
    return path


def module(name: str, folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_recipe", recipe(name, folder))
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[f"{name}_recipe"] = loaded
    spec.loader.exec_module(loaded)
    return loaded


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
            assert (process.wait(60) == 0) == (kill_after is None)
        return losses

    @pytest.mark.timeout(180)
    def test_killed_on_two_ranks_and_resumed_on_one(self, raw: Built, tmp_path: Path) -> None:
        script = recipe("torchrun", tmp_path)
        whole = self.losses(self.start(script, raw.root, tmp_path / "whole", 2))
        assert sorted(whole) == list(range(1, self.STEPS + 1))
        assert len(set(whole.values())) == self.STEPS
        broken = self.losses(self.start(script, raw.root, tmp_path / "broken", 2), kill_after=40)
        assert max(broken) < self.STEPS
        rest = self.losses(self.start(script, raw.root, tmp_path / "broken", 1))
        assert min(rest) in (max(broken), max(broken) + 1)
        resumed = broken | rest
        assert resumed == pytest.approx(whole, rel=1e-9)


def undisturbed(open_raw: Any, steps: int) -> list[list[int]]:
    loader = StreamingTokenLoader(open_raw(batch_size=8, shuffle_block_size=1 << 18))
    epochs = [batch["sequence_ids"].tolist() for _ in range(2) for batch in loader]
    return epochs[:steps]


@pytest.mark.filterwarnings("ignore")  # Lightning's and Transformers' own
class TestTrainers:
    def test_lightning(self, raw: Built, open_raw: Any, tmp_path: Path) -> None:
        pytest.importorskip("lightning")
        fit = module("lightning", tmp_path).fit
        first = fit(str(raw.root), str(tmp_path), 10)
        again = fit(str(raw.root), str(tmp_path), 90, resume=str(tmp_path / "10.ckpt"))
        assert len(first.seen) == 10
        assert first.seen + again.seen == undisturbed(open_raw, 90)

    def test_transformers(self, raw: Built, open_raw: Any, tmp_path: Path) -> None:
        pytest.importorskip("accelerate")
        train = module("transformers", tmp_path).train
        first = train(str(raw.root), str(tmp_path), 10)
        again = train(str(raw.root), str(tmp_path), 90, resume=str(tmp_path / "checkpoint-10"))
        assert len(first.seen) == 10
        assert first.seen + again.seen == undisturbed(open_raw, 90)
