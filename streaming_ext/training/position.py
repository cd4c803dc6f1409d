"""The position of a plain DataLoader: what the dataset itself saves and resumes from.

A plain DataLoader starts the dataset's iterator in its workers, and the main process does not see
it. So the workers leave notes in shared memory without a name, which leaves nothing over.
`StreamingTokenLoader` counts by itself and needs none of this.
"""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.order.state import Cursor
from streaming_ext.training.resume import Resume
from streaming_ext.training.workers import this_worker

MAX_WORKERS: Final = 512
_GENERATION, _LENGTH = range(2)
_COUNT_BITS, _SEED_BITS = 20, 30  # and the rest for the generation: one word, written at once
# Generations that are counted; as many more are of workers that start at a given state.
_COUNTED: Final = 1 << 12
_OLDER: Final = (
    "A newer iteration of this {what} began, and both count as one training: this one cannot go "
    "on. Finish with one iterator before the next, or make a {what} for each."
)


class Newest:
    """The number of the newest iteration."""

    def __init__(self, what: str) -> None:
        """Begin with none, of a loader or a dataset, as users call it."""
        self._what, self._number = what, 0

    def begin(self) -> int:
        """Number of an iteration that begins."""
        self._number += 1
        return self._number

    def require(self, number: int) -> None:
        """Refuse to go on with an older iteration.

        Raises:
            UsageError: a newer one began.
        """
        if number != self._number:
            raise UsageError(_OLDER.format(what=self._what))


class EpochBoard:
    """The start of the next iteration, and the number of iterations of each worker since then."""

    def __init__(self, state: bytes) -> None:
        """Let the first iteration start at a state; others may take more bytes."""
        self._words = torch.zeros(2 + MAX_WORKERS, dtype=torch.int64)  # generation, length, notes
        # Torch copies 32 KiB and more with threads, for which a forked process waits for ever.
        self._state = torch.zeros(max(24 << 10, 2 * len(state)), dtype=torch.uint8)
        for each in (self._words, self._state):
            each.share_memory_()  # type: ignore[no-untyped-call]
        self.set(state)

    def set(self, state: bytes) -> None:
        """Let the next iteration start at a state; also workers that already run will."""
        self._write(state)
        self._words[_GENERATION] = int(self._words[_GENERATION]) % (_COUNTED - 1) + 1
        self._words[2:].zero_()

    def begin_at(self, state: bytes) -> None:
        """Start this worker's iteration at a state, that of all of its workers.

        They do so at the same time, in any order: each writes the same, and a note of its own.
        """
        worker, seed = _worker_and_seed()
        self._write(state)
        self._words[_GENERATION] = _COUNTED + seed % _COUNTED
        self._note(worker, seed, count=1)

    def _write(self, state: bytes) -> None:
        if len(state) > len(self._state):
            raise UsageError(
                "The sizes of steps changed too often for the workers of a DataLoader. Use "
                "StreamingTokenLoader."
            )
        self._state.numpy()[: len(state)] = np.frombuffer(state, np.uint8)
        self._words[_LENGTH] = len(state)

    def base(self) -> bytes:
        """The state that was set last."""
        return self._state.numpy()[: int(self._words[_LENGTH])].tobytes()

    def iterations(self) -> int:
        """Iterations that started since the state was set."""
        return max((count for count, _ in self._notes().values()), default=0)

    def begin(self) -> int:
        """Note that this process starts an iteration; returns its number since `set`, from 0.

        The workers of one iteration have the same seed. A worker without a note of that seed joins
        those that have one; a worker with one begins the next iteration.
        """
        worker, seed = _worker_and_seed()
        number = self.upcoming()
        self._note(worker, seed, count=number + 1)
        return number

    def _note(self, worker: int, seed: int, *, count: int) -> None:
        word = int(self._words[_GENERATION]) << (_COUNT_BITS + _SEED_BITS)
        self._words[2 + worker] = word | count << _SEED_BITS | seed

    def upcoming(self) -> int:
        """The number of the iteration that `begin` would start in this process."""
        worker, seed = _worker_and_seed()
        notes = self._notes()  # read once: other workers of this iteration write meanwhile
        count, own_seed = notes.get(worker, (0, None))
        if own_seed == seed:
            return count
        joined = [count for count, other in notes.values() if other == seed]
        return max(joined) - 1 if joined else max((count for count, _ in notes.values()), default=0)

    def _notes(self) -> dict[int, tuple[int, int]]:
        """Count and seed of each worker's note of this generation."""
        generation, _, *words = self._words.tolist()
        masks = (1 << _COUNT_BITS) - 1, (1 << _SEED_BITS) - 1
        return {
            worker: (word >> _SEED_BITS & masks[0], word & masks[1])
            for worker, word in enumerate(words)
            if word and word >> (_COUNT_BITS + _SEED_BITS) == generation
        }


def _worker_and_seed() -> tuple[int, int]:
    """Number of this worker, and the seed of its iteration; 0 without workers."""
    info = get_worker_info()
    if info is None:
        return 0, 0
    if info.id >= MAX_WORKERS:
        raise UsageError(f"At most {MAX_WORKERS} workers per rank, got number {info.id}.")
    return info.id, 1 + (info.seed - info.id) % ((1 << _SEED_BITS) - 1)


class _Iteration(NamedTuple):
    """An iteration that began, in which process, and how many did since the board was set."""

    process: int  # workers are forked with the iteration of their parent
    cursor: Cursor
    number: int


class TrainingPosition:
    """The position of one dataset and of its copies in workers."""

    def __init__(self, resume: Resume) -> None:
        """Stand at the beginning of epoch 0."""
        self._resume = resume
        self._plan = resume.plan
        self._board = EpochBoard(self._saved(self._plan.start(0)))
        self._iteration: _Iteration | None = None
        self._worker_state: tuple[Cursor, int] | None = None
        self.yielded = 0  # rows, by this process in this iteration

    def upcoming(self) -> Cursor:
        """The start of the next iteration."""
        return self._cursor(self._board.iterations())

    def restart(self, epoch: int) -> None:
        """Let the next iteration start an epoch of a run that changed nothing on the way."""
        self._board.set(self._saved(self._plan.start(epoch)))

    def request(self) -> None:
        """Note that a new iteration was requested, which begins with its first row.

        torchdata requests the state of a worker's new iteration before it begins.
        """
        self._iteration = None

    def begin(self) -> Cursor:
        """Note that an iteration starts, at this cursor, behind the `yielded` rows of it."""
        if self._worker_state is None:
            cursor, self.yielded = self._cursor(self._board.begin()), 0
        else:
            cursor, self.yielded = self._worker_state
            self._worker_state = None
        self._iteration = _Iteration(os.getpid(), cursor, self._board.iterations())
        return cursor

    def state(self, num_samples: int | None, *, from_beginning: bool) -> dict[str, Any]:
        """See `StreamingTokenDataset.state_dict`."""
        if num_samples is None and get_worker_info() is not None:
            return self._state_of_worker()
        started = self._board.iterations()
        cursor = self._cursor(max(0, started - 1))
        if not started:
            num_samples, from_beginning = 0, False
        elif num_samples is None:
            if self._iteration is None or self._iteration.number != started:
                raise UsageError(
                    "Workers read this dataset, and only training knows what it received of them. "
                    "Pass num_samples=, or use StreamingTokenLoader."
                )
            cursor = self._iteration.cursor
            num_samples = self.yielded * self._plan.rank.size
            from_beginning = False
        position = num_samples if from_beginning else cursor.position + num_samples
        behind = position - cursor.position
        step = self._plan.batch_size * self._plan.rank.size
        if behind % step and position < self._plan.epoch_size:
            raise UsageError(
                f"{num_samples} sequences are no whole number of global batches of {step}. Save "
                "between two steps."
            )
        position = min(position, self._plan.epoch_size)
        return self._resume.state_of(replace(cursor, position=position)).to_dict()

    def _state_of_worker(self) -> dict[str, Any]:
        """The state of this worker's iteration, which may not have started in it."""
        worker, num_workers = this_worker()
        if self._iteration is not None and self._iteration.process == os.getpid():
            cursor, yielded = self._iteration.cursor, self.yielded
        elif self._worker_state is not None:
            cursor, yielded = self._worker_state
        else:
            cursor, yielded = self._cursor(self._board.upcoming()), 0
        own = {"worker": worker, "num_workers": num_workers, "yielded": yielded}
        return self._resume.state_of(cursor).to_dict({"worker": own})

    def load(
        self, state: Mapping[str, Any], *, allow_changes: Collection[str], extend_state: bool
    ) -> Cursor:
        """See `StreamingTokenDataset.load_state_dict`; returns its position."""
        saved_cursor = self._resume.saved_cursor(
            state, allow_changes=allow_changes, extend_state=extend_state
        )
        cursor = self._resume.resumed_at(saved_cursor)
        own = state.get("worker")
        if own is None:
            self._board.set(self._saved(cursor))
            self._worker_state = None
            return saved_cursor
        worker, num_workers = this_worker()
        if (own["worker"], own["num_workers"]) != (worker, num_workers):
            raise ConfigMismatchError(
                f"The state is of worker {own['worker']} of {own['num_workers']}, this is "
                f"{worker} of {num_workers}. Resume a StatefulDataLoader with as many workers, or "
                "use StreamingTokenLoader, whose state fits any number."
            )
        # Later epochs count from this one, even if it ends before it gives a row.
        self._board.begin_at(self._saved(cursor))
        self._iteration, self._worker_state = None, (cursor, own["yielded"])
        return saved_cursor

    def _saved(self, cursor: Cursor) -> bytes:
        return json.dumps(self._resume.state_of(cursor).to_dict()).encode()

    def _cursor(self, iterations: int) -> Cursor:
        cursor = self._resume.saved_cursor(json.loads(self._board.base()), allow_changes=())
        for _ in range(iterations):
            cursor = self._plan.next_epoch(cursor)
        return cursor
