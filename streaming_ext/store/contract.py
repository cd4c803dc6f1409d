"""The interface to the storage of a dataset: a folder on a disk, or a prefix of a bucket."""

import builtins
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Protocol

from streaming_ext.base.errors import StorageError, UsageError
from streaming_ext.store.scratch import remove_scratch


class Storage(Protocol):
    """The root of a dataset; paths are relative to it, and `str()` gives its URL.

    A file appears under its name complete and in one step, even if the writer is killed or the
    connection is cut. All methods raise `StorageError` if the storage refuses, and
    `TransientStorageError` if another attempt may succeed.
    """

    # True if the storage lies behind a network.
    remote: bool
    # Number of files that a worker puts at once, while it makes further ones.
    puts_at_once: int

    @property
    def name(self) -> str:
        """A name for files about this dataset outside of it."""
        ...

    @property
    def scratch_parent(self) -> Path:
        """The default parent of the local folder for work in progress."""
        ...

    def free_bytes(self) -> int | None:
        """Return the free space in bytes, or None if it is unknown."""
        return None

    def create(self) -> None:
        """Make the folder, or make sure that the bucket exists.

        Raises:
            UsageError: the root is a file.
        """
        ...

    def put(self, path: str, data: bytes) -> None:
        """Put a file in one step; replace an existing file."""
        ...

    def put_file(self, path: str, file: Path, *, lasting: bool = True) -> None:
        """Put a local file in one step; replace an existing file.

        The local file must not change afterwards: on the same disk it gets a second name.

        Args:
            path: the path of the file in this storage.
            file: the local file.
            lasting: True to flush the file to disk, so that it survives a loss of power.
        """
        ...

    def adopt(self, other: "Storage", path: str, to: str, size: int) -> bool:
        """Take over a file of another storage without reading it, if that is possible.

        On the same disk the file gets a second name; an object store copies it itself.

        Args:
            other: the storage that holds the file.
            path: the path of the file in the other storage.
            to: the path of the file in this storage.
            size: the size of the file in bytes.

        Returns:
            True if the file was taken over.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptDatasetError: the file has another size.
        """
        ...

    def read(self, path: str) -> bytes:
        """Return the content of a file; raise `FileNotFoundError` if there is none."""
        ...

    def read_into(self, path: str, room: memoryview, seen: Callable[[memoryview], object]) -> int:
        """Read a large file into given memory, or as much of it as fits.

        Args:
            path: the path of the file; `FileNotFoundError` if there is none.
            room: the memory that takes the content.
            seen: called with each block in order, while the block is in the cache of a core.

        Returns:
            The number of bytes read.
        """
        ...

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file; raise `FileNotFoundError` if there is none."""
        ...

    def list(self, folder: str = "") -> dict[str, int]:
        """Return every file below a folder, sorted: path relative to the root -> size in bytes."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        ...

    def above(self) -> Iterator[str]:
        """Return the location of each folder that contains the root, the nearest first."""
        ...

    def leftovers(self) -> builtins.list[str]:
        """Return the files in progress that killed runs left."""
        return []

    def remove_incoming(self) -> None:
        """Remove the leftovers; only the holder of the dataset may call this."""
        return

    def tidy(self, scratch: Path) -> None:
        """Remove what a run left if it was killed after it published, but nothing of a live run.

        Args:
            scratch: the run's folder for work in progress.
        """
        with suppress(StorageError, UsageError):
            if scratch.exists() or self.leftovers():
                with self.exclusive():
                    self.remove_incoming()
                    self.close()
                    remove_scratch(scratch)

    def exclusive(
        self, report: Callable[[str], None] = lambda message: None
    ) -> AbstractContextManager[int | None]:
        """Hold the dataset against other runs; raise `UsageError` if another run is at work.

        Yield a file descriptor that worker processes must keep open, if the lock is a file.

        Args:
            report: called with a message about the run that holds the lock, which may be ending or
                dead.
        """
        ...

    def require_held(self) -> None:
        """Make sure that this run still holds the dataset, which it took with `exclusive`."""
        return

    def close(self) -> None:
        """Remove what is needed only for writing."""
        return

    def require_inside(self, path: str) -> PurePosixPath:
        """Return the path of a file, which must lie below the root.

        Raises:
            StorageError: the path leads out of the root.
        """
        pure = PurePosixPath(path)
        if not pure.parts or pure.is_absolute() or ".." in pure.parts:
            raise StorageError(f"{path!r} leads out of {self}")
        return pure


Put = Callable[[str, Path], None]


@contextmanager
def uploads(storage: Storage, *, lasting: bool = True) -> Iterator[Put]:
    """Yield a `put` that may return before its file is stored; at the end all files are stored.

    Args:
        storage: the storage; it takes `puts_at_once` files at a time.
        lasting: see `Storage.put_file`.

    Raises:
        StorageError: a file could not be put; the puts in progress end first.
    """
    running: set[Future[None]] = set()

    def put(path: str, file: Path) -> None:
        nonlocal running
        if len(running) == storage.puts_at_once:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
        running.add(threads.submit(storage.put_file, path, file, lasting=lasting))

    with ThreadPoolExecutor(storage.puts_at_once, thread_name_prefix="shardmill-put") as threads:
        yield put
        for future in running:
            future.result()
