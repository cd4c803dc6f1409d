"""Where the iterations of a plain loader stand: what the dataset itself saves and goes on from.

A plain DataLoader starts the dataset's iterator in its workers and tells nobody; the board carries
the word between them. `StreamingTokenLoader` keeps its own account and needs none of this.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import get_worker_info

from streaming_ext.checkpoint.consistent import count_of
from streaming_ext.checkpoint.epoch_board import EpochBoard
from streaming_ext.checkpoint.resume import Resume
from streaming_ext.errors import ConfigMismatchError, UsageError
from streaming_ext.sampler.cursor import Cursor


@dataclass(frozen=True, kw_only=True, slots=True)
class Iteration:
    """One iteration in this process.

    Attributes:
        cursor: where it starts, for all workers.
        worker: number of this worker, 0 without workers.
        num_workers: how many share the steps, 1 without.
        number: iterations started since the board was set, this one included.
    """

    cursor: Cursor
    worker: int
    num_workers: int
    number: int


class TrainingPosition:
    """The account of one dataset and of its copies in workers."""

    def __init__(self, resume: Resume) -> None:
        """Stand at the beginning of epoch 0."""
        self._resume = resume
        self._plan = resume.plan
        self._board = EpochBoard(len(self._plan.choose))
        self._board.set(self._plan.start(0))
        self._iteration: Iteration | None = None
        self._worker_state: tuple[Cursor, int] | None = None
        self._process = 0  # that `_iteration` is of; workers are forked with that of their parent
        self.yielded = 0  # rows, by this process in this iteration

    def upcoming(self) -> Cursor:
        """Where the next iteration starts."""
        return self._cursor(self._board.iterations())

    def restart(self, epoch: int) -> None:
        """Let the next iteration start an epoch of a run that changed nothing on the way."""
        self._board.set(self._plan.start(epoch))

    def ask(self) -> None:
        """Note that an iteration was asked for here, which begins with its first row.

        torchdata asks new iterations of workers where they stand before they begin.
        """
        self._iteration = None

    def begin(self) -> Iteration:
        """Note that an iteration starts here; `yielded` then holds what it gave out before."""
        worker, num_workers = _worker()
        if self._worker_state is None:
            cursor, self.yielded = self._cursor(self._board.begin()), 0
        else:
            cursor, self.yielded = self._worker_state
            self._worker_state = None
        self._iteration = Iteration(
            cursor=cursor, worker=worker, num_workers=num_workers, number=self._board.iterations()
        )
        self._process = os.getpid()
        return self._iteration

    def state(self, num_samples: int | None, *, from_beginning: bool) -> dict[str, Any]:
        """See `StreamingTokenDataset.state_dict`."""
        if num_samples is None and get_worker_info() is not None:
            return self._state_of_worker()
        begun = self._board.iterations()
        if begun == 0:
            return self._resume.state_of(self._cursor(0)).to_dict()
        cursor = self._cursor(begun - 1)
        if num_samples is None:
            here = self._iteration or Iteration(cursor=cursor, worker=0, num_workers=1, number=0)
            if here.number != begun:
                raise UsageError(
                    "Workers read this dataset, and only training knows what it received of them. "
                    "Pass num_samples=, or use StreamingTokenLoader."
                )
            cursor = here.cursor
            num_samples = self.yielded * self._plan.slices.num_ranks
            from_beginning = False
        place = num_samples if from_beginning else cursor.place + num_samples
        behind = place - cursor.place
        if behind % self._plan.slices.global_batch and place < self._plan.epoch_size:
            raise UsageError(
                f"{num_samples} sequences are no whole number of global batches of "
                f"{self._plan.slices.global_batch}. Save between two steps."
            )
        place = min(place, self._plan.epoch_size)
        return self._resume.state_of(replace(cursor, place=place)).to_dict()

    def _state_of_worker(self) -> dict[str, Any]:
        """Where this worker of an iteration stands, which may not have begun here."""
        worker, num_workers = _worker()
        if self._iteration is not None and self._process == os.getpid():
            cursor, yielded = self._iteration.cursor, self.yielded
        elif self._worker_state is not None:
            cursor, yielded = self._worker_state
        else:
            cursor, yielded = self._cursor(self._board.upcoming()), 0
        own = {"worker": worker, "num_workers": num_workers, "yielded": yielded}
        return self._resume.state_of(cursor).to_dict() | {"worker": own}

    def load(
        self, state: Mapping[str, Any], *, allow_changes: Collection[str], extend_state: bool
    ) -> Cursor:
        """See `StreamingTokenDataset.load_state_dict`; returns the place that the state is of."""
        place = self._resume.place_of(state, allow_changes=allow_changes, extend_state=extend_state)
        cursor = self._resume.going_on(place)
        own = state.get("worker")
        if own is None:
            self._board.set(cursor)
            self._worker_state = None
            return place
        worker, num_workers = _worker()
        try:
            yielded = count_of(own["yielded"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigMismatchError(f"The state's worker is damaged: {error!r}.") from error
        if (own.get("worker"), own.get("num_workers")) != (worker, num_workers):
            raise ConfigMismatchError(
                f"The state is of worker {own.get('worker')} of {own.get('num_workers')}, this is "
                f"{worker} of {num_workers}. Resume a StatefulDataLoader with as many workers, or "
                "use StreamingTokenLoader, whose state fits any number."
            )
        # The epochs behind it count from here, also where this one is ended before it gives a row.
        self._board.begin_at(cursor)
        self._iteration, self._worker_state = None, (cursor, yielded)
        return place

    def _cursor(self, iterations: int) -> Cursor:
        cursor = self._board.base()
        for _ in range(iterations):
            cursor = self._plan.next_epoch(cursor)
        return cursor


def _worker() -> tuple[int, int]:
    """Number of this worker, and how many there are."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
