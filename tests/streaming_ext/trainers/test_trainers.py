"""The recipes for trainers: what a trainer gets, and that a checkpoint brings it back.

Trainers that are not installed are stood in for by what they ask of a loader.
"""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.stateful import Stateful

from streaming_ext import StreamingTokenLoader
from tests.streaming_ext.build import Built
from tests.streaming_ext.trainers.recipes import load_recipe

ONE_PROCESS = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
Recipe = Callable[[str], Any]
EPOCH = 73  # steps of 8 sequences


@pytest.fixture
def of(tmp_path: Path) -> Recipe:
    return lambda name: load_recipe(name, tmp_path)


@pytest.fixture
def steps(open_raw: Any) -> list[dict[str, torch.Tensor]]:
    """Two epochs as an undisturbed loader gives them."""
    extras = ["targets", "position_ids"]
    dataset = open_raw(batch_size=8, shuffle_block_size=1 << 18, extras=extras)
    loader = StreamingTokenLoader(dataset)
    found = [batch for _ in range(2) for batch in loader]
    assert len(found) == 2 * EPOCH
    return found


def alike(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(found) == len(expected) > 0 and all(map(torch.equal, found, expected))


def test_nanogpt(raw: Built, of: Recipe, steps: list[Any]) -> None:
    recipe = of("nanogpt_batches")
    loader = recipe.loader_of(str(raw.root), 8, 8)
    get_batch = recipe.batch_getter(loader, "cpu")
    found = [get_batch() for _ in range(80)]  # into the second epoch
    saved = loader.state_dict()
    found += [get_batch() for _ in range(5)]
    assert alike([x for x, _ in found], [step["tokens"] for step in steps[:85]])
    targets = [step["targets"] for step in steps[:85]]
    assert alike([y for _, y in found], [t.masked_fill(t < 0, -1) for t in targets])
    assert min(int(y.min()) for _, y in found) == -1
    again = recipe.loader_of(str(raw.root), 8, 8)
    again.load_state_dict(saved)
    get_batch = recipe.batch_getter(again, "cpu")
    assert alike([get_batch()[0] for _ in range(5)], [x for x, _ in found[80:]])


def test_a_copy_that_overlaps(of: Recipe, open_raw: Any, steps: list[Any]) -> None:
    recipe = of("overlapping_copy")

    def open_loader() -> Any:
        dataset = open_raw(batch_size=8, shuffle_block_size=1 << 18)
        return recipe.OnDevice(StreamingTokenLoader(dataset), "cpu")

    loader = open_loader()
    expected = [step["tokens"] for step in steps]
    found = [batch["tokens"] for batch in islice(loader, 5)]
    saved = loader.state_dict()
    plain = StreamingTokenLoader(open_raw(batch_size=8, shuffle_block_size=1 << 18))
    plain.skip(5)
    assert saved == plain.state_dict()  # not what lies ready on the device
    found += [batch["tokens"] for _ in range(2) for batch in loader]
    assert alike(found, expected)
    again = open_loader()
    again.load_state_dict(saved)
    assert alike([batch["tokens"] for batch in again], expected[5:EPOCH])


@ONE_PROCESS
def test_distributed_checkpoint(
    of: Recipe, open_raw: Any, steps: list[Any], tmp_path: Path
) -> None:
    recipe = of("distributed_checkpoint")
    assert isinstance(recipe.LoaderState(None), Stateful)
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    settings = {"batch_size": 8, "shuffle_block_size": 1 << 18}
    loader = StreamingTokenLoader(open_raw(**settings))
    for _ in range(2):  # 80 steps
        list(islice(loader, 80 - EPOCH if loader.step else EPOCH))
    recipe.save(str(tmp_path / "saved"), model, loader)
    again = StreamingTokenLoader(open_raw(**settings))
    recipe.load(str(tmp_path / "saved"), other, again)
    assert torch.equal(model.weight, other.weight)
    assert again.state_dict() == loader.state_dict()
    assert alike([b["tokens"] for b in again], [step["tokens"] for step in steps[80:]])


@ONE_PROCESS
def test_torchtitan(
    raw: Built, of: Recipe, steps: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch.distributed import checkpoint

    class BaseDataLoader(Stateful, ABC):  # as torchtitan.components.dataloader has it
        @abstractmethod
        def __iter__(self) -> Iterator[Any]: ...

    module: Any = ModuleType("torchtitan.components.dataloader")
    module.BaseDataLoader = BaseDataLoader
    monkeypatch.setitem(sys.modules, "torchtitan", ModuleType("torchtitan"))
    monkeypatch.setitem(sys.modules, "torchtitan.components", ModuleType("torchtitan.components"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = of("torchtitan_loader").ShardmillDataLoader

    def ranks(size: int) -> list[Any]:
        return [made(str(raw.root), dp_rank=rank, dp_world_size=size, global_batch=8, seq_len=8)
                for rank in range(size)]  # fmt: skip

    def run(loaders: list[Any], count: int) -> list[torch.Tensor]:
        each = [list(islice(loader, count)) for loader in loaders]
        assert all(set(inputs) == {"input"} for inputs, _ in each[0])
        return [torch.cat([inputs["input"] for inputs, _ in step])
                for step in zip(*each, strict=True)]  # fmt: skip

    two = ranks(2)
    expected = [step["tokens"] for step in steps]
    assert alike(run(two, 80), expected[:80])
    checkpoint.save({"dataloader": two[0]}, checkpoint_id=tmp_path / "saved")
    (one,) = ranks(1)
    checkpoint.load({"dataloader": one}, checkpoint_id=tmp_path / "saved")
    assert alike(run([one], 10), expected[80:90])


def test_composer(
    raw: Built, of: Recipe, steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Callback:  # what of composer's checkpoints concerns a loader
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    class Trainer:
        def __init__(self, *, model: Any, train_dataloader: Any, callbacks: list[Callback],
                     spin_dataloaders: bool = True, max_duration: int) -> None:  # fmt: skip
            assert not spin_dataloaders
            self.loader, self.callbacks, self.left = train_dataloader, callbacks, max_duration
            self.found: list[torch.Tensor] = []
            self.model = model

        def fit(self) -> None:
            while self.left:
                for batch in self.loader:
                    self.found.append(batch["tokens"])
                    self.left -= 1
                    if not self.left:
                        break

    stand_in: Any = ModuleType("composer")
    stand_in.Callback, stand_in.Trainer = Callback, Trainer
    monkeypatch.setitem(sys.modules, "composer", stand_in)
    recipe = of("composer_callback")
    first = recipe.trainer_of(None, str(raw.root), 8, max_duration=80)
    first.fit()
    saved = json.loads(json.dumps([each.state_dict() for each in first.callbacks]))
    second = recipe.trainer_of(None, str(raw.root), 8, max_duration=10)
    for callback, state in zip(second.callbacks, saved, strict=True):
        callback.load_state_dict(state)
    second.fit()
    assert alike(first.found + second.found, [step["tokens"] for step in steps[:90]])


def test_accelerate(raw: Built, of: Recipe, steps: list[Any], tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    recipe = of("accelerate_loader")
    accelerator = accelerate.Accelerator(cpu=True)
    loader = recipe.loader_of(accelerator, str(raw.root), 8)
    found = [batch["tokens"] for batch in islice(loader, 20)]
    accelerator.save_state(str(tmp_path / "saved"))
    for _ in islice(loader, 30):
        pass  # steps that a crash took back
    accelerator.load_state(str(tmp_path / "saved"))
    found += [batch["tokens"] for batch in loader]
    assert alike(found, [step["tokens"] for step in steps[:EPOCH]])


def test_megatron(raw: Built, of: Recipe, steps: list[Any]) -> None:
    recipe = of("megatron_iterator")

    def step_of(iterators: list[Iterator[Any]]) -> dict[str, torch.Tensor]:
        """All micro batches of a step, rank by rank."""
        each = [next(one) for one in iterators for _ in range(8 // len(iterators) // 2)]
        return {name: torch.cat([batch[name] for batch in each]) for name in each[0]}

    def ranks(size: int, consumed: int) -> list[Iterator[Any]]:
        return [recipe.train_iterator(str(raw.root), dp_rank=rank, dp_world_size=size,
                                      global_batch=8, micro_batch=2, consumed=consumed)
                for rank in range(size)]  # fmt: skip

    two = ranks(2, consumed=0)
    found = [step_of(two) for _ in range(80)]
    four = ranks(4, consumed=80 * 8)  # args.consumed_train_samples of the checkpoint
    found += [step_of(four) for _ in range(10)]
    told = SimpleNamespace(**{name: [step[name] for step in found] for name in found[0]})
    assert alike(told.tokens, [step["tokens"] for step in steps[:90]])
    assert alike(told.position_ids, [step["position_ids"].long() for step in steps[:90]])
    targets = [step["targets"] for step in steps[:90]]
    assert alike(told.labels, [each.clamp(min=0) for each in targets])
    assert alike(told.loss_mask, [(each >= 0).float() for each in targets])
    assert min(float(each.min()) for each in told.loss_mask) == 0
