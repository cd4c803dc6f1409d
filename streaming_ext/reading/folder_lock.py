"""The lock file of a cache folder: between processes, and between everything in this one.

POSIX locks belong to a process, not to who asks: two datasets of one process on one cache would
both be let in, and closing one descriptor would drop the locks of the other. So a process has one
`FolderLock` a folder, which also keeps its own threads apart. The kernel drops the locks of a
process that was killed.
"""

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from streaming_ext.base.errors import StorageError, TransientStorageError

if TYPE_CHECKING:
    from streaming_ext.reading.cache import ShardCache

_PAUSE = 0.01  # seconds between two attempts


class FolderLock:
    """Locks single bytes of `.lock` in a folder; what a byte stands for, its users agree upon."""

    def __init__(self, folder: Path) -> None:
        """Open the file, and make the folder where there is none.

        Raises:
            StorageError: this user may not.
        """
        self._caches: WeakSet[ShardCache] = WeakSet()
        self._path = folder / ".lock"
        self._guard = threading.Lock()
        self._threads: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._shared: Counter[int] = Counter()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StorageError(
                f"The cache {folder} cannot be used: {error}. Give local= a folder that this user "
                "may write."
            ) from error

    @property
    def is_current(self) -> bool:
        """Whether the file that is open is the one that lies there: a user may have removed it."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return False

    def add(self, cache: "ShardCache") -> None:
        """Note a cache of this process on the folder, as long as it lives."""
        with self._guard:
            self._caches.add(cache)

    def caches(self) -> "list[ShardCache]":
        """The caches of this process on the folder."""
        with self._guard:
            return list(self._caches)

    @contextlib.contextmanager
    def exclusive(self, byte: int, *, patience: float, what: str) -> Iterator[None]:
        """Hold a byte alone.

        Args:
            byte: which one.
            patience: seconds to wait for another holder.
            what: its name for the message.

        Raises:
            TransientStorageError: another one holds it for too long.
            StorageError: the file system has no locks.
        """
        deadline = time.monotonic() + patience
        with self._guard:
            thread_lock = self._threads[byte]
        if not thread_lock.acquire(timeout=patience):
            raise TransientStorageError(f"Another thread holds {what} for over {patience:g} s.")
        try:
            while not self._try(fcntl.LOCK_EX, byte):
                if time.monotonic() > deadline:
                    raise TransientStorageError(
                        f"Another process holds {what} for over {patience:g} s."
                    )
                time.sleep(_PAUSE)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, byte)
        finally:
            thread_lock.release()

    @contextlib.contextmanager
    def at_once(self, byte: int) -> Iterator[bool]:
        """Whether nobody holds a byte alone; if so, it is held alone until the block ends."""
        with self._guard:
            thread_lock = self._threads[byte]
        if not thread_lock.acquire(blocking=False):
            yield False
            return
        try:
            if not self._try(fcntl.LOCK_EX, byte):
                yield False
                return
            try:
                yield True
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, byte)
        finally:
            thread_lock.release()

    def share(self, byte: int) -> None:
        """Hold a byte together with others, until as many calls of `unshare`."""
        while True:
            with self._guard:
                if self._shared[byte] or self._try(fcntl.LOCK_SH, byte):
                    self._shared[byte] += 1
                    return
            time.sleep(_PAUSE)  # another process looks whether it is unused, which is short

    def unshare(self, byte: int) -> None:
        """Let go of what `share` held."""
        with self._guard:
            if not self._shared[byte]:
                return
            self._shared[byte] -= 1
            if not self._shared[byte]:
                del self._shared[byte]
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, byte)

    @contextlib.contextmanager
    def unused(self, byte: int) -> Iterator[bool]:
        """Whether nobody shares a byte; if so, nobody begins to before the block ends."""
        with self._guard:
            if self._shared[byte] or not self._try(fcntl.LOCK_EX, byte):
                yield False
                return
            try:
                yield True
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, byte)

    def _try(self, kind: int, byte: int) -> bool:
        try:
            fcntl.lockf(self._descriptor, kind | fcntl.LOCK_NB, 1, byte)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise StorageError(
                f"{self._path} cannot be locked: {error}. Give local= a folder on a local disk."
            ) from error
        return True


# Never taken out: closing a descriptor drops every lock that the process has on its file.
_known: dict[str, FolderLock] = {}
_guard = threading.Lock()


def folder_lock(folder: Path, cache: "ShardCache | None" = None) -> FolderLock:
    """The lock of a folder in this process.

    Args:
        folder: made where it is missing.
        cache: that asks; None where no shards are read there.

    Raises:
        StorageError: it cannot be made.
    """
    name = os.path.realpath(folder)
    with _guard:
        lock = _known.get(name)
        if lock is None or not lock.is_current:
            lock = _known[name] = FolderLock(folder)
        if cache is not None:
            lock.add(cache)
        return lock


def _start_anew() -> None:
    """Forget what a fork copied: POSIX locks are not inherited, and threads are not here."""
    global _known, _guard
    _known, _guard = {}, threading.Lock()


os.register_at_fork(after_in_child=_start_anew)
