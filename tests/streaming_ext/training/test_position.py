"""The notes that workers of a plain DataLoader leave, and the position that follows from them."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import _utils as loader_internals

from streaming_ext.base.errors import UsageError
from streaming_ext.training.position import TrainingPosition

BASE_SEED = 2**40 + 7


@contextmanager
def inside(worker: int, seed: int = BASE_SEED) -> Iterator[None]:
    """Make this process look like a worker of an iteration."""
    info = SimpleNamespace(id=worker, seed=seed + worker, num_workers=2)  # of `get_worker_info`
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader_internals.worker, "_worker_info", info)
        yield


@pytest.fixture
def position(open_raw: Any) -> TrainingPosition:
    """The position of a dataset whose training was moved to epoch 5."""
    found = TrainingPosition(open_raw().plan)
    found.move(found._plan.start(5))
    return found


@pytest.mark.parametrize("seeds", [(1, 2, 3), (1, 1, 1)])
def test_workers_count_alike(position, seeds) -> None:
    """The order and the seeds of workers do not matter, nor whether another one is ahead."""
    for epoch, seed in enumerate(seeds, 5):
        for worker in (0, 1) if epoch % 2 else (1, 0):
            with inside(worker, BASE_SEED + seed):
                assert position.begin().epoch == epoch
    assert position.upcoming().epoch == 8
    assert position.begin().epoch == 8  # without workers


def test_workers_that_began_before_a_move_are_refused(position) -> None:
    of_worker = copy.copy(position)  # it shares the memory, like a process
    with inside(0):
        assert of_worker.begin().epoch == 5
    position.move(position.upcoming())
    assert position.upcoming().epoch == 6
    with inside(0), pytest.raises(UsageError, match="make the DataLoader anew"):
        of_worker.begin()
    assert position.begin().epoch == 6
