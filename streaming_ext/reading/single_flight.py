"""Work that many threads ask for at once, done by one of them, as Go's `singleflight` does."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from streaming_ext.base.errors import ShardmillError, TransientStorageError


class SingleFlight:
    """Runs the work of each key in one thread at a time.

    Who waits while another thread tries shares its failure, and does not try all over again; who
    comes later does.
    """

    def __init__(self) -> None:
        """Nothing is under way."""
        self._guard = threading.Lock()
        self._locks: dict[int, threading.Lock] = {}
        self._failures: dict[int, ShardmillError] = {}  # of the last thread that tried

    def run(
        self,
        key: int,
        work: Callable[[], None],
        *,
        done: Callable[[], bool],
        patience: float,
        what: str,
    ) -> None:
        """Have the work done, by this thread or the one that is at it.

        Args:
            key: of the work.
            work: does it.
            done: whether nothing is left to do.
            patience: seconds to wait for another thread.
            what: its name for the message.

        Raises:
            TransientStorageError: another thread is at it for too long.
            ShardmillError: the work failed, here or in the thread that was waited for.
        """
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        alone = lock.acquire(blocking=False)
        if not alone and not lock.acquire(timeout=patience):
            raise TransientStorageError(f"{what} did not come within {patience:g} s.")
        try:
            failure = self._failures.pop(key, None)
            if done():
                return
            if failure is not None and not alone:
                raise failure
            work()
        except ShardmillError as error:
            self._failures[key] = error
            raise
        finally:
            lock.release()

    @contextmanager
    def at_once(self, key: int) -> Iterator[bool]:
        """Whether nobody is at the work of a key; if so, nobody begins before the block ends."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        alone = lock.acquire(blocking=False)
        try:
            yield alone
        finally:
            if alone:
                lock.release()
