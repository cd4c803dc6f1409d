"""Which epoch a plain DataLoader is at, told between a dataset and its copies in workers.

A plain DataLoader starts the dataset's iterator in its workers and tells no one. So the workers
leave notes in a page of shared memory that has no name: nothing of it can be left over.
"""

from typing import Final

import torch
from torch.utils.data import get_worker_info

from streaming_ext.errors import UsageError
from streaming_ext.sampler.cursor import Cursor
from streaming_ext.sampler.grown.grown_pass import Growth
from streaming_ext.sampler.past import Past, PastSteps

MAX_WORKERS: Final = 512
_MOST_GROWN: Final = 8  # times that a dataset may have been extended during one pass
_MOST_PAST: Final = 64  # stages of steps in an epoch before its sizes were changed
_GENERATION, _EPOCH, _PLACE, _TOKENS, _PASS, _STEPS, _REORDERED, _STAGES, _GROWN = range(9)
_PAST: Final = _GROWN + 2 * _MOST_GROWN
_BEFORE: Final = _PAST + 3 * _MOST_PAST
_COUNT_BITS, _SEED_BITS = 20, 30  # and the rest for the generation: one word, written at once
# Generations that are counted; as many more are of workers that were told where they begin.
_COUNTED: Final = 1 << 12


class EpochBoard:
    """Where the next iteration starts, and how often each worker has started one since."""

    def __init__(self, streams: int) -> None:
        """An empty board for datasets of so many streams; `set` comes first."""
        self._streams = streams
        self._words = torch.zeros(_BEFORE + 2 * streams + MAX_WORKERS, dtype=torch.int64)
        self._words.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def _slots(self) -> torch.Tensor:
        return self._words[_BEFORE + 2 * self._streams :]

    def set(self, cursor: Cursor) -> None:
        """Let the next iteration start at a cursor; also workers that already run will."""
        self._write(cursor)
        self._words[_GENERATION] = int(self._words[_GENERATION]) % (_COUNTED - 1) + 1
        self._slots.zero_()

    def begin_at(self, cursor: Cursor) -> None:
        """Start this worker's iteration at a cursor, that of all of its workers.

        They do so at the same time, in any order: each writes the same, and a note of its own.
        """
        worker, seed = _worker_and_seed()
        self._write(cursor)
        self._words[_GENERATION] = _COUNTED + seed % _COUNTED
        self._note(worker, seed, count=1)

    def _write(self, cursor: Cursor) -> None:
        grown, past = cursor.grown or Growth(number=0, steps=()), cursor.past or Past()
        if len(grown.steps) > _MOST_GROWN:
            raise UsageError(f"A pass may go through {_MOST_GROWN} extensions at most.")
        if len(past.steps) > _MOST_PAST:
            raise UsageError(
                f"This epoch had {len(past.steps)} stages of steps before its sizes were changed; "
                f"a DataLoader can tell its workers of {_MOST_PAST}. Use StreamingTokenLoader."
            )
        self._words[_EPOCH] = cursor.epoch
        self._words[_PLACE] = cursor.place
        self._words[_TOKENS] = cursor.tokens
        told = torch.tensor((*cursor.before, *cursor.missed))
        self._words[_BEFORE : _BEFORE + 2 * self._streams] = told
        steps = [word for step in grown.steps for word in step]
        self._words[_PASS], self._words[_STEPS] = grown.number, len(grown.steps)
        self._words[_GROWN : _GROWN + len(steps)] = torch.tensor(steps, dtype=torch.int64)
        steps = [
            word for each in past.steps for word in (each.steps, each.global_batch, each.length)
        ]
        self._words[_REORDERED], self._words[_STAGES] = past.reordered, len(past.steps)
        self._words[_PAST : _PAST + len(steps)] = torch.tensor(steps, dtype=torch.int64)

    def base(self) -> Cursor:
        """The cursor that was set last."""
        words = self._words.tolist()
        steps = words[_GROWN : _GROWN + 2 * words[_STEPS]]
        grown = Growth(number=words[_PASS], steps=tuple(zip(steps[::2], steps[1::2], strict=True)))
        missed = _BEFORE + self._streams
        told = words[_PAST : _PAST + 3 * words[_STAGES]]
        came = tuple(
            PastSteps(steps=steps, global_batch=batch, length=length)
            for steps, batch, length in zip(*[iter(told)] * 3, strict=True)
        )
        past = Past(steps=came, reordered=words[_REORDERED])
        return Cursor(
            epoch=words[_EPOCH],
            place=words[_PLACE],
            tokens=words[_TOKENS],
            before=tuple(words[_BEFORE:missed]),
            grown=grown if steps else None,
            past=past if past != Past() else None,
            missed=tuple(words[missed : missed + self._streams]),
        )

    def iterations(self) -> int:
        """Iterations started since the cursor was set."""
        return max(self._counts(), default=0)

    def begin(self) -> int:
        """Note that this process starts an iteration; returns its number since `set`, from 0.

        The workers of one iteration share a seed. A worker that has none of its own notes under
        it joins those that have; one that has begins the next.
        """
        worker, seed = _worker_and_seed()
        number = self.upcoming()
        self._note(worker, seed, count=number + 1)
        return number

    def _note(self, worker: int, seed: int, *, count: int) -> None:
        word = int(self._words[_GENERATION]) << (_COUNT_BITS + _SEED_BITS)
        self._slots[worker] = word | count << _SEED_BITS | seed

    def upcoming(self) -> int:
        """The number of the iteration that `begin` would start in this process."""
        worker, seed = _worker_and_seed()
        own = self._own(worker)
        if own is not None and own[1] == seed:
            return own[0]
        notes = self._notes()  # read once: other workers of this iteration write meanwhile
        joined = [count for count, other in notes if other == seed]
        return max(joined) - 1 if joined else max((count for count, _ in notes), default=0)

    def _counts(self) -> list[int]:
        return [count for count, _ in self._notes()]

    def _own(self, worker: int) -> tuple[int, int] | None:
        return self._read(int(self._slots[worker]))

    def _notes(self) -> list[tuple[int, int]]:
        read = map(self._read, self._slots[self._slots != 0].tolist())
        return [note for note in read if note is not None]

    def _read(self, word: int) -> tuple[int, int] | None:
        """Count and seed of a note, None where it is of an earlier generation."""
        if word >> (_COUNT_BITS + _SEED_BITS) != int(self._words[_GENERATION]):
            return None
        return (word >> _SEED_BITS) & ((1 << _COUNT_BITS) - 1), word & ((1 << _SEED_BITS) - 1)


def _worker_and_seed() -> tuple[int, int]:
    """Number of this worker, and what the workers of its iteration share; 0 without workers."""
    info = get_worker_info()
    if info is None:
        return 0, 0
    if info.id >= MAX_WORKERS:
        raise UsageError(f"At most {MAX_WORKERS} workers a rank, got number {info.id}.")
    return info.id, 1 + (info.seed - info.id) % ((1 << _SEED_BITS) - 1)
