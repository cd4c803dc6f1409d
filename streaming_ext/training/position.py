"""The position of a plain DataLoader: what the dataset itself saves and resumes from.

A plain DataLoader starts the dataset's iterator in its workers, and the main process does not see
it. So the workers leave notes in shared memory, which has no name and is never left over.
`StreamingTokenLoader` counts by itself and needs none of this.
"""

from dataclasses import replace
from typing import Final

import torch
from torch.utils.data import get_worker_info

from streaming_ext.base.errors import UsageError
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.state import Cursor

MAX_WORKERS: Final = 512
_SEED_BITS: Final = 30  # of a note; the other bits hold the count, so that one write sets both


class Newest:
    """The number of the newest iteration."""

    def __init__(self, what: str) -> None:
        """Start without an iteration; `what` is the word for the owner in messages."""
        self._what, self._number = what, 0

    def begin(self) -> int:
        """Begin an iteration, and return its number."""
        self._number += 1
        return self._number

    def require(self, number: int) -> None:
        """Refuse to go on with an older iteration.

        Raises:
            UsageError: a newer iteration began.
        """
        if number != self._number:
            raise UsageError(
                f"A newer iteration of this {self._what} began, and both count as one training: "
                "this one cannot go on. Finish with one iterator before the next, or make a "
                f"{self._what} for each."
            )


class TrainingPosition:
    """The position of one dataset and of its copies in workers."""

    def __init__(self, plan: EpochPlan) -> None:
        """Start at the beginning of epoch 0."""
        self._plan, self._base = plan, plan.start(0)
        self._moves, self._number = 0, 0  # `_number`: the last iteration here since the base
        # The number of moves of training, then the note of each worker: count and seed.
        self._words = torch.zeros(1 + MAX_WORKERS, dtype=torch.int64, device="cpu")
        self._words.share_memory_()  # type: ignore[no-untyped-call]
        self.yielded = 0  # rows that this process yielded in this iteration

    def move(self, cursor: Cursor) -> None:
        """Let the next iteration start at a cursor."""
        self._base, self._moves, self._number = cursor, self._moves + 1, 0
        self._words[0] = self._moves
        self._words[1:].zero_()

    def upcoming(self) -> Cursor:
        """Return the start of the next iteration."""
        return self._start_of(self._started())

    def begin(self) -> Cursor:
        """Record that this process starts an iteration, and return its start.

        The workers of one iteration have the same seed. A worker without a note of that seed joins
        the workers that have one; a worker that has one begins the next iteration.

        Raises:
            UsageError: training was moved since this worker was started.
        """
        if self._moves != self._words[0]:
            raise UsageError(
                "The position of training was changed, and the workers of this DataLoader were "
                "started before: make the DataLoader anew."
            )
        worker, seed = _worker_and_seed()
        notes = self._notes()  # read once: other workers of this iteration write meanwhile
        number, own_seed = notes.get(worker, (0, None))
        if own_seed != seed:
            joined = [count - 1 for count, other in notes.values() if other == seed]
            number = max(joined or [count for count, _ in notes.values()], default=0)
        self._words[1 + worker] = number + 1 << _SEED_BITS | seed
        self._number, self.yielded = number + 1, 0
        return self._start_of(number)

    def at(self, num_samples: int | None, *, from_beginning: bool) -> Cursor:
        """Return the position of training; see `StreamingTokenDataset.state_dict`."""
        started, plan = self._started(), self._plan
        if get_worker_info() is not None or (num_samples is None and self._number != started):
            raise UsageError(
                "Workers read this dataset, and only training knows what it received of them. "
                "Pass num_samples=, or use StreamingTokenLoader."
            )
        if not started:
            return self._base
        cursor, step = self._start_of(started - 1), plan.batch_size * plan.rank.size
        if num_samples is None:
            num_samples, from_beginning = self.yielded * plan.rank.size, False
        position = num_samples + (0 if from_beginning else cursor.position)
        if (position - cursor.position) % step and position < plan.epoch_size:
            raise UsageError(
                f"{num_samples} sequences are no whole number of global batches of {step}. Save "
                "between two steps."
            )
        return replace(cursor, position=min(position, plan.epoch_size))

    def _start_of(self, number: int) -> Cursor:
        """Return the start of an iteration, by its number since training was moved."""
        cursor = self._base
        for _ in range(number):
            cursor = self._plan.next_epoch(cursor)
        return cursor

    def _started(self) -> int:
        """Count the iterations that started since training was moved."""
        return max((count for count, _ in self._notes().values()), default=0)

    def _notes(self) -> dict[int, tuple[int, int]]:
        """Return the count and the seed of each worker that left a note."""
        words = enumerate(self._words[1:].tolist())
        return {worker: divmod(word, 1 << _SEED_BITS) for worker, word in words if word}


def _worker_and_seed() -> tuple[int, int]:
    """Return the number of this worker and the seed of its iteration; 0 without workers."""
    info = get_worker_info()
    if info is None:
        return 0, 0
    if info.id >= MAX_WORKERS:
        raise UsageError(f"At most {MAX_WORKERS} workers per rank, got number {info.id}.")
    return info.id, 1 + (info.seed - info.id) % ((1 << _SEED_BITS) - 1)
