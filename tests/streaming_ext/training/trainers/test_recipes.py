"""The programs of docs/how-to/trainers.md that train from beginning to end."""

import builtins
import importlib
import json
import math
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from streaming_ext import StreamingTokenLoader
from streaming_ext.base.errors import UsageError
from tests.servers.prefect.server import free_port
from tests.streaming_ext import build
from tests.streaming_ext.processes import in_processes
from tests.streaming_ext.training.trainers.recipes import ROOT, load_recipe, recipe


class TestTorchrun:
    """Its ranks are forked from this process, which has imported what they need."""

    STEPS = 100  # an epoch has 73

    def run(
        self, rank: int, ranks: int, port: int, paths: Sequence[Path], losses: Any, stop: int
    ) -> None:
        """Run the recipe as torchrun does on a rank; rank 0 is killed once it prints `stop`."""
        torch.set_num_threads(1)
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )

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
        """Return the losses that the recipe prints until it ends, or all ranks are killed."""
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

    def test_a_dataset_of_other_ids_and_lengths(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr(build, "EOT", 300)
        other = build.build_some(tmp_path / "data", 300, sequence_length=16, vocab_size=301)
        found = self.losses(1, recipe("torchrun_train", tmp_path), other.root, tmp_path / "saved")
        assert len(found) == self.STEPS


def seen(script: Path, *arguments: object, launcher: Sequence[str] = ()) -> list[list[int]]:
    """Run a recipe; return the sequences of its steps over all ranks, sorted."""
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
    """Ten steps on two ranks and eighty more on one see what an undisturbed run sees."""

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

    @pytest.mark.filterwarnings("ignore")  # Lightning's
    @pytest.mark.parametrize("reads", ["configure_optimizers", "setup"])
    def test_lightning_asks_for_the_loader_early_and_again(
        self, raw, undisturbed, tmp_path, reads, capsys
    ) -> None:
        """It asks before the checkpoint is loaded, as `OneCycleLR` does, and in each epoch."""
        importlib.import_module("tests.streaming_ext.training.trainers.vision")
        from lightning import Trainer

        class Model(load_recipe("lightning_train", tmp_path).Model):
            def __getattribute__(self, name: str) -> Any:
                if name == reads:
                    assert self.trainer.estimated_stepping_batches > 0
                return super().__getattribute__(name)

        def train(steps: int, **settings: Any) -> list[list[int]]:
            trainer = Trainer(
                max_steps=steps,
                max_epochs=9,
                accelerator="cpu",
                devices=1,
                default_root_dir=tmp_path,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                reload_dataloaders_every_n_epochs=1,
            )
            trainer.fit(Model(raw.root), **settings)
            trainer.save_checkpoint(tmp_path / "last.ckpt")
            printed = capsys.readouterr().out.splitlines()
            return [sorted(json.loads(line)["seen"]) for line in printed if '"seen"' in line]

        found = train(10)
        found += train(80, ckpt_path=tmp_path / "last.ckpt")  # into the second epoch
        found += train(90, ckpt_path=tmp_path / "last.ckpt")
        assert found == undisturbed

    @pytest.mark.soak  # most of its half minute is the library's start on each of three ranks
    def test_transformers(self, raw, undisturbed, tmp_path) -> None:
        script = recipe("huggingface_train", tmp_path)
        two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        assert seen(script, raw.root, tmp_path, 10, launcher=two) == undisturbed[:10]
        rest = seen(script, raw.root, tmp_path, 90, tmp_path / "checkpoint-10")
        assert rest == undisturbed[10:]


class TestDividedAgain:
    """accelerate and Transformers divide an iterable dataset, but this one is already divided."""

    def told(self, rank: int, port: int, open_dataset: Any) -> dict[str, Any]:
        """Return what each way gives one of two ranks: sequences of two steps, or an error."""
        import accelerate
        from accelerate.utils import DataLoaderConfiguration
        from transformers import Trainer, TrainingArguments

        warnings.simplefilter("ignore")  # those of torchdata, accelerate and Transformers
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
        os.environ.update({name: str(number) for name, number in own.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1")
        found: dict[str, Any] = {}

        def attempt(name: str, run: Any) -> None:
            try:
                steps = zip(range(2), run(), strict=False)
                found[name] = [row for _, step in steps for row in step["sequence_ids"].tolist()]
            except UsageError as error:
                found[name] = str(error)

        def prepared(loader: Any, **settings: Any) -> Any:
            own = DataLoaderConfiguration(**settings)
            return accelerate.Accelerator(cpu=True, dataloader_config=own).prepare(loader)

        def trainer() -> Trainer:
            arguments = TrainingArguments("unused", max_steps=1, report_to=[], use_cpu=True)
            data = open_dataset()
            model = torch.nn.Linear(1, 1)
            return Trainer(model, arguments, train_dataset=data, eval_dataset=data)

        whole = {"dp_rank": 0, "dp_world_size": 1}
        attempt("ours", lambda: prepared(StreamingTokenLoader(open_dataset())))
        attempt("plain", lambda: DataLoader(open_dataset(), batch_size=4))
        attempt("whole", lambda: prepared(DataLoader(open_dataset(**whole), batch_size=4)))
        for settings in ({}, {"dispatch_batches": False}, {"split_batches": True}):
            for workers in (0, 1):
                loader = DataLoader(open_dataset(), batch_size=4, num_workers=workers)
                attempt(f"{settings} {workers}", partial(prepared, loader, **settings))
        stateful = StatefulDataLoader(open_dataset(), batch_size=4)
        attempt("stateful", lambda: prepared(stateful, use_stateful_dataloader=True))
        attempt("training", lambda: trainer().train())
        attempt("evaluation", lambda: trainer().evaluate())
        return found

    def test_is_refused_and_named(self, open_raw, tmp_path, monkeypatch) -> None:
        for name in (
            "accelerate",
            "tests.streaming_ext.training.trainers.vision",
            "transformers.trainer",
        ):
            importlib.import_module(name)  # once, for both ranks
        monkeypatch.chdir(tmp_path)
        open_dataset = partial(open_raw, shuffle=False, dp_rank=None, dp_world_size=None)
        both = in_processes(2, self.told, free_port(), open_dataset)
        for rank, found in enumerate(both):
            own = [row + 4 * rank for row in (0, 1, 2, 3, 8, 9, 10, 11)]
            for name in ("ours", "plain", "whole"):
                assert found.pop(name) == own
            assert len(found) == 9
            for name, text in found.items():
                assert f"rank {rank} of 2" in text, name
                assert "Use StreamingTokenLoader(dataset)" in text

    def test_one_rank_is_not(self, open_raw) -> None:
        accelerate = importlib.import_module("accelerate")
        loader = DataLoader(open_raw(shuffle=False), batch_size=4)
        prepared = accelerate.Accelerator(cpu=True).prepare(loader)
        for _ in range(2):
            assert next(iter(prepared))["sequence_ids"].tolist() == [0, 1, 2, 3]
