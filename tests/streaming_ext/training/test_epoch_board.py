"""What a dataset and its copies in the workers of a plain DataLoader exchange."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from torch.utils.data import _utils as loader_internals

from streaming_ext.training.position import EpochBoard

BASE_SEED = 2**40 + 7


@dataclass(frozen=True)
class Worker:
    """What `get_worker_info` returns in a worker."""

    id: int
    seed: int
    num_workers: int = 2


@contextmanager
def inside(worker: int, seed: int = BASE_SEED) -> Iterator[None]:
    """As if in a worker of an iteration, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader_internals.worker, "_worker_info", Worker(worker, seed + worker))
        yield


def position(epoch: int) -> bytes:
    return f"position {epoch}".encode()


def test_workers_that_get_a_state_count_alike() -> None:
    """In whatever order they come, and whether or not another one has gone on by then."""
    board = EpochBoard(position(0))
    with inside(1):
        board.begin_at(position(5))
    with inside(0):
        board.begin_at(position(5))
        assert board.begin() == 1
    with inside(1):
        assert board.begin() == 1
    assert board.base() == position(5)
    assert board.iterations() == 2


def test_notes_of_before_do_not_count() -> None:
    board = EpochBoard(position(0))
    for epoch in range(5000):  # more than there are numbers of generations
        board.set(position(epoch))
        assert board.iterations() == 0
        if epoch % 1000 == 0:
            for worker, number in ((0, 0), (1, 0), (1, 1), (0, 1)):
                with inside(worker):
                    assert board.begin() == number
            assert board.iterations() == 2
