"""The recipes for trainers: the batches that a trainer gets, before and after a checkpoint.

Stand-ins replace trainers that are not installed; they use a loader as those trainers do.
"""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.stateful import Stateful

from streaming_ext import StreamingTokenLoader
from tests.streaming_ext.training.trainers.recipes import load_recipe

ONE_PROCESS = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
Recipe = Callable[[str], Any]
EPOCH = 73  # steps of 8 sequences


@pytest.fixture
def of(tmp_path: Path) -> Recipe:
    return lambda name: load_recipe(name, tmp_path)


@pytest.fixture
def open_loader(open_raw: Any) -> Callable[..., StreamingTokenLoader]:
    """Open a loader like those of the recipes."""
    return lambda **settings: StreamingTokenLoader(
        open_raw(batch_size=8, shuffle_block_size=1 << 18, **settings)
    )


@pytest.fixture
def steps(open_loader: Any) -> list[dict[str, torch.Tensor]]:
    """The batches of two epochs of an undisturbed loader."""
    loader = open_loader(extras=["targets", "position_ids"])
    found = [batch for _ in range(2) for batch in loader]
    assert len(found) == 2 * EPOCH
    return found


@pytest.fixture
def expected(steps: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    """The tokens of these batches."""
    return [step["tokens"] for step in steps]


def alike(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(found) == len(expected) > 0 and all(map(torch.equal, found, expected))


def tokens_of(batches: Iterable[Any]) -> list[torch.Tensor]:
    return [batch["tokens"] for batch in batches]


def test_nanogpt(raw, of, steps, expected) -> None:
    recipe = of("nanogpt_batches")
    loader = recipe.loader_of(str(raw.root), 8, 8)
    get_batch = recipe.batch_getter(loader, "cpu")
    found = [get_batch() for _ in range(80)]  # into the second epoch
    saved = loader.state_dict()
    inputs, targets = map(list, zip(*found, strict=True))
    assert alike(inputs, expected[:80])
    ignored = [step["targets"].masked_fill(step["targets"] < 0, -1) for step in steps[:80]]
    assert alike(targets, ignored)
    assert min(int(each.min()) for each in targets) == -1
    again = recipe.loader_of(str(raw.root), 8, 8)
    again.load_state_dict(saved)
    get_batch = recipe.batch_getter(again, "cpu")
    assert alike([get_batch()[0] for _ in range(5)], expected[80:85])


def test_a_copy_that_overlaps(of, open_loader, expected) -> None:
    recipe = of("overlapping_copy")
    loader = recipe.OnDevice(open_loader(), "cpu")
    found = tokens_of(islice(loader, 5))
    saved = loader.state_dict()
    plain = open_loader()
    plain.skip(5)
    assert saved == plain.state_dict()  # batches that wait on the device do not count
    found += tokens_of(loader) + tokens_of(loader)
    assert alike(found, expected)
    again = recipe.OnDevice(open_loader(), "cpu")
    again.load_state_dict(saved)
    assert alike(tokens_of(again), expected[5:EPOCH])


@ONE_PROCESS
def test_distributed_checkpoint(of, open_loader, expected, tmp_path) -> None:
    recipe = of("distributed_checkpoint")
    assert isinstance(recipe.LoaderState(None), Stateful)
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    loader = open_loader()
    for count in (EPOCH, 80 - EPOCH):
        list(islice(loader, count))
    recipe.save(str(tmp_path / "saved"), model, loader)
    again = open_loader()
    recipe.load(str(tmp_path / "saved"), other, again)
    assert torch.equal(model.weight, other.weight)
    assert again.state_dict() == loader.state_dict()
    assert alike(tokens_of(again), expected[80:])


@ONE_PROCESS
@pytest.mark.parametrize(
    ("module", "length", "batch", "shape"),
    [
        ("data.loader", "max_context_length", "num_tokens_per_batch", (64,)),
        ("dataloader", "seq_len", "local_batch_size", (8, 8)),
    ],
)
def test_torchtitan(raw, of, steps, monkeypatch, tmp_path, module, length, batch, shape) -> None:
    class BaseDataLoader(Stateful, ABC):  # as torchtitan has it, on main and in 0.3
        @dataclass(kw_only=True, slots=True)
        class Config: ...

        @abstractmethod
        def __iter__(self) -> Iterator[Any]: ...

    name = "torchtitan"
    for part in ("", *f".components.{module}".split(".")[1:]):
        name += part and f".{part}"
        stand_in = ModuleType(name)
        stand_in.__path__ = []  # a package without modules
        stand_in.BaseDataLoader = BaseDataLoader
        monkeypatch.setitem(sys.modules, name, stand_in)
    made = of("torchtitan_loader").ShardmillDataLoader

    def ranks(size: int) -> list[Any]:
        of_rank = {length: 8, batch: shape[0] // size, "tokenizer": None}
        return [
            made(made.Config(data=str(raw.root)), dp_rank=rank, dp_world_size=size, **of_rank)
            for rank in range(size)
        ]

    def require_steps(loaders: list[Any], first: int, stop: int) -> None:
        """Compare inputs, positions and targets of all ranks together with those of some steps."""
        batches_of_ranks = islice(zip(*loaders, strict=True), stop - first)
        for step, batches in zip(steps[first:stop], batches_of_ranks, strict=True):
            of_ranks = zip(*((*inputs.values(), labels) for inputs, labels in batches), strict=True)
            for name, own in zip(("tokens", "position_ids", "targets"), of_ranks, strict=True):
                assert torch.equal(torch.cat(own).reshape(8, 8), step[name])

    two = ranks(2)
    require_steps(two, 0, 80)
    checkpoint.save({"dataloader": two[0]}, checkpoint_id=tmp_path / "saved")
    (one,) = ranks(1)
    checkpoint.load({"dataloader": one}, checkpoint_id=tmp_path / "saved")
    require_steps([one], 80, 90)
    assert next(iter(one))[0]["input"].shape == shape


def test_composer(raw, of, expected, monkeypatch) -> None:
    class Callback:  # the part of composer's checkpoints that concerns a loader
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    class Trainer:
        def __init__(
            self,
            *,
            model: Any,
            train_dataloader: Any,
            callbacks: list[Callback],
            spin_dataloaders: bool = True,
            max_duration: int,
        ) -> None:
            assert not spin_dataloaders
            self.loader, self.callbacks, self.left = train_dataloader, callbacks, max_duration
            self.found: list[torch.Tensor] = []
            self.model = model

        def fit(self) -> None:
            while self.left > len(self.found):
                self.found += tokens_of(islice(self.loader, self.left - len(self.found)))

    stand_in = SimpleNamespace(Callback=Callback, Trainer=Trainer)
    monkeypatch.setitem(sys.modules, "composer", stand_in)
    recipe = of("composer_callback")
    first = recipe.trainer_of(None, str(raw.root), 8, max_duration=80)
    first.fit()
    saved = json.loads(json.dumps([each.state_dict() for each in first.callbacks]))
    second = recipe.trainer_of(None, str(raw.root), 8, max_duration=10)
    for callback, state in zip(second.callbacks, saved, strict=True):
        callback.load_state_dict(state)
    second.fit()
    assert alike(first.found + second.found, expected[:90])


def test_accelerate(raw, of, expected, tmp_path) -> None:
    accelerate = pytest.importorskip("accelerate")
    recipe = of("accelerate_loader")
    accelerator = accelerate.Accelerator(cpu=True)
    loader = recipe.loader_of(accelerator, str(raw.root), 8)
    found = tokens_of(islice(loader, 20))
    accelerator.save_state(str(tmp_path / "saved"))
    list(islice(loader, 30))  # steps that a crash loses
    accelerator.load_state(str(tmp_path / "saved"))
    assert alike(found + tokens_of(loader), expected[:EPOCH])


def test_megatron(raw, of, steps) -> None:
    recipe = of("megatron_iterator")

    def step_of(iterators: list[Iterator[Any]]) -> dict[str, torch.Tensor]:
        """Return all micro batches of a step, rank by rank."""
        each = [next(one) for one in iterators for _ in range(8 // len(iterators) // 2)]
        return {name: torch.cat([batch[name] for batch in each]) for name in each[0]}

    def ranks(size: int, consumed: int) -> list[Iterator[Any]]:
        return [
            recipe.train_iterator(
                str(raw.root),
                dp_rank=rank,
                dp_world_size=size,
                global_batch=8,
                micro_batch=2,
                consumed=consumed,
            )
            for rank in range(size)
        ]

    two = ranks(2, consumed=0)
    found = [step_of(two) for _ in range(80)]
    four = ranks(4, consumed=80 * 8)  # args.consumed_train_samples of the checkpoint
    found += [step_of(four) for _ in range(10)]
    for step, own in zip(steps, found, strict=False):
        targets = step["targets"]
        assert torch.equal(own["tokens"], step["tokens"])
        assert torch.equal(own["position_ids"], step["position_ids"].long())
        assert torch.equal(own["labels"], targets.clamp(min=0))
        assert torch.equal(own["loss_mask"], (targets >= 0).float())
    assert min(float(own["loss_mask"].min()) for own in found) == 0
