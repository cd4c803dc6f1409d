"""The interface of a dataset's storage: a folder on a disk, or a prefix of a bucket."""

import builtins
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Protocol

from streaming_ext.base.errors import StorageError, UsageError
from streaming_ext.store.scratch import remove_scratch


class Storage(Protocol):
    """The root of a dataset; paths are relative to it, `str()` gives its URL.

    A file appears under its name in one step and complete, also if the writer is killed or the
    connection is cut. All methods raise `StorageError` if the storage refuses, and
    `TransientStorageError` if another attempt may succeed.
    """

    # Whether it lies behind a network.
    remote: bool
    # Number of files that a worker puts at once, beside the work that makes them.
    puts_at_once: int

    @property
    def name(self) -> str:
        """A name for files about this dataset that lie elsewhere."""
        ...

    @property
    def scratch_parent(self) -> Path:
        """The local folder for work in progress, unless the user names one."""
        ...

    def free_bytes(self) -> int | None:
        """Free space in bytes, None if it is unknown."""
        return None

    def create(self) -> None:
        """Make the folder, or make sure that the bucket exists.

        Raises:
            UsageError: it is a file.
        """
        ...

    def put(self, path: str, data: bytes) -> None:
        """Put a file in one step, over an older one."""
        ...

    def put_file(self, path: str, file: Path, *, lasting: bool = True) -> None:
        """Put a local file in one step, over an older one; it must not change any more.

        On the same disk the file gets a second name.

        Args:
            path: the path of the file here.
            file: the local one.
            lasting: flushed to disk, so that it survives a loss of power.
        """
        ...

    def adopt(self, other: "Storage", path: str, to: str, size: int) -> bool:
        """Take over a file of another storage without reading it, if that is possible.

        On one disk it gets a second name; a store copies it by itself.

        Args:
            other: holds the file.
            path: the path of the file there.
            to: the path of the file here.
            size: the size of the file in bytes.

        Returns:
            Whether that was possible.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptDatasetError: it has another size.
        """
        ...

    def read(self, path: str) -> bytes:
        """The content of a file; `FileNotFoundError` if there is none."""
        ...

    def read_into(self, path: str, room: memoryview, seen: Callable[[memoryview], object]) -> int:
        """Read a large file into given memory, or as much of it as fits.

        Args:
            path: the path of the file; `FileNotFoundError` if there is none.
            room: takes it.
            seen: called with all of it in order, block by block while a core has it in its cache.

        Returns:
            The number of bytes read.
        """
        ...

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of a file; `FileNotFoundError` if there is none."""
        ...

    def list(self, folder: str = "") -> dict[str, int]:
        """Every file below a folder, sorted: path relative to the root -> size in bytes."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        ...

    def above(self) -> Iterator[str]:
        """The location of each folder that contains it, the nearest first."""
        ...

    def leftovers(self) -> builtins.list[str]:
        """Files that killed runs left under no final name."""
        return []

    def remove_incoming(self) -> None:
        """Remove the leftovers; only for the holder of the dataset."""
        return

    def tidy(self, scratch: Path) -> None:
        """Remove what a run left that was killed after it published; nothing of a live run.

        Args:
            scratch: the folder of the run for work in progress.
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
        """Hold the dataset against other runs; `UsageError` if one is at work.

        Yields a file descriptor for worker processes to keep open, if that is how it is held.

        Args:
            report: called with the run that it waits for, which may be ending or dead.
        """
        ...

    def require_held(self) -> None:
        """Make sure that this run still holds what it took with `exclusive`."""
        return

    def close(self) -> None:
        """Remove what is only needed while writing."""
        return

    def require_inside(self, path: str) -> PurePosixPath:
        """The path of a file, which must lie below the root.

        Raises:
            StorageError: it does not.
        """
        pure = PurePosixPath(path)
        if not pure.parts or pure.is_absolute() or ".." in pure.parts:
            raise StorageError(f"{path!r} leads out of {self}")
        return pure


Put = Callable[[str, Path], None]


@contextmanager
def uploads(storage: Storage, *, lasting: bool = True) -> Iterator[Put]:
    """Yields a `put` that may return before the file is stored; at the end all files are.

    Args:
        storage: takes the files; as many at once as it has use for.
        lasting: see `Storage.put_file`.

    Raises:
        StorageError: a file could not be put; those in progress are waited for.
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
