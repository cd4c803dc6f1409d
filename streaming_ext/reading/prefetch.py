"""Threads that fetch and verify the shards of coming steps in the background."""

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Self

import numpy as np

from streaming_ext.base.arrays import Ints, ceil_div
from streaming_ext.base.errors import ShardmillError
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.reading.source import TokenSource
from streaming_ext.reading.token_reader import FILLING, TokenReader

THREADS = 8  # twice as many as download at once: the others unpack and verify
_PATIENCE = 0.05  # seconds between checks of the step of training
_AT_EXIT: Final = 2.0  # seconds for all threads to end; enough if storage answers


def sequences_ahead(plan: EpochPlan, source: TokenSource) -> int:
    """Compute the default of `predownload`: one rank's part of the sequences that all ranks need.

    All ranks need half a window per canonical node, or three shards if these are more, and at least
    one shard per thread. One rank's part is at least 64 steps.

    Args:
        plan: the plan of the rank.
        source: the source of the rows.
    """
    sizes, order = source.sizes, plan.spec
    per_shard = ceil_div(sum(sizes), source.reader.num_shards)
    window = min(order.window, max(sizes)) if order.shuffle else 0
    per_node = max(window // 2, 3 * per_shard)
    wanted = max(per_node * order.canonical_nodes, THREADS * per_shard)
    ranks = plan.rank.size
    return max(wanted // ranks, 64 * (plan.steps.global_batch.largest // ranks))


def _first_uses(
    source: TokenSource, upcoming: Iterable[tuple[range, Ints, Ints]]
) -> Iterator[tuple[int, int]]:
    """Yield step and shard of the first use of each shard that is not ready."""
    ready = source.reader.shards.ready
    for steps, streams, sequences in upcoming:
        if ready.all():
            return
        located = source.locate(streams.reshape(-1), sequences.reshape(-1), source.length)
        rows, shards = located.uses()
        distinct, at = np.unique(shards, return_index=True)
        for offset in np.argsort(at).tolist():
            shard = int(distinct[offset])
            if shard != FILLING and not ready[shard]:
                yield steps[int(rows[at[offset]]) // streams.shape[1]], shard


class Prefetcher:
    """Threads that open the shards of coming steps in their order, until the `with` block ends.

    If a shard does not come, the thread ends silently. The step that needs the shard meets the same
    failure and raises it, and a shard that no step needs must not stop training. `require_well`,
    which the reader calls, raises unexpected errors.
    """

    def __init__(
        self,
        source: TokenSource,
        upcoming: Iterable[tuple[range, Ints, Ints]],
        *,
        ahead: int,
        now: Callable[[], int],
    ) -> None:
        """Start the threads.

        Args:
            source: the source of the rows.
            upcoming: steps with their streams and sequences: (steps, rows per step) each.
            ahead: the number of steps to be ahead of training.
            now: the function that returns the current step of training.
        """
        self.reader = reader = source.reader
        self._upcoming = _first_uses(source, upcoming)
        self._ahead = ahead
        self._limit = reader.ahead_limit  # bytes of shards that are opened ahead of their use
        self._most = reader.shards.most // 2  # shards that are opened ahead of their use
        self._now = now
        self._guard = threading.Lock()
        self._waiting: list[tuple[int, int]] = []  # step and bytes of shards opened ahead
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self.threads = [
            threading.Thread(target=self._run, daemon=True, name=f"shardmill-prefetch-{number}")
            for number in range(THREADS)
        ]
        for thread in self.threads:
            thread.start()
        _running.add(self)

    def require_well(self) -> None:
        """Raise an unexpected error of a thread, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """Make the threads end; a thread that is reading ends after it."""
        self._stop.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._guard:
                    pair = next(self._upcoming, None)
                if pair is None:
                    return
                step, shard = pair
                if step < self._now():  # the step has opened it; others may need the room
                    continue
                if not self._may_open(step, int(self.reader.raw_sizes[shard])):
                    return
                self.reader.shards.open(shard)
            except ShardmillError:
                return
            except BaseException as error:  # noqa: BLE001 - the reader raises it
                self._failure = error
                self.stop()

    def _may_open(self, step: int, size: int) -> bool:
        """Wait until a shard of a step may be opened; return False if stopped."""
        while not self._stop.is_set():
            now = self._now()
            with self._guard:
                self._waiting = [entry for entry in self._waiting if entry[0] > now]
                held = sum(entry[1] for entry in self._waiting)
                fits = not self._waiting or (
                    len(self._waiting) < self._most
                    and (self._limit is None or held + size <= self._limit)
                )
                has_room = self.reader.shards.num_open < self.reader.shards.most + self._most
                if step <= now + self._ahead and fits and has_room:
                    self._waiting.append((step, size))
                    return True
            self._stop.wait(_PATIENCE)
        return False


_running: "weakref.WeakSet[Prefetcher]" = weakref.WeakSet()


def end_all(reader: TokenReader | None = None) -> None:
    """Stop the threads of a reader and wait until they have ended.

    Without a reader, stop the threads of all readers before the interpreter ends, and wait only
    briefly. A thread that returns from native code after that aborts the process with "terminate
    called without an active exception".
    """
    until = time.monotonic() + _AT_EXIT
    running = [each for each in list(_running) if reader is None or each.reader is reader]
    for prefetcher in running:
        prefetcher.stop()
    for thread in (thread for prefetcher in running for thread in prefetcher.threads):
        thread.join(None if reader else max(0.0, until - time.monotonic()))


atexit.register(end_all)
