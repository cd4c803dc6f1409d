"""What every place for a dataset can do, whatever it is made of."""

import builtins
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol


class Storage(Protocol):
    """A dataset's root; paths are relative to it, `str()` gives its URL.

    A file appears under its name in one step and whole, also when the writer is killed or the
    connection cut. All methods raise `StorageError` where the place does not do what is asked,
    `TransientStorageError` where asking again later may help.
    """

    @property
    def name(self) -> str:
        """A name for files about this dataset that lie elsewhere."""
        ...

    @property
    def scratch_parent(self) -> Path:
        """The local folder that work in progress goes to unless the user names one."""
        ...

    @property
    def puts_at_once(self) -> int:
        """How many files a worker should put at the same time, beside the work that makes them."""
        ...

    @property
    def remote(self) -> bool:
        """Whether it lies behind a network: putting is then a matter of waiting."""
        ...

    @property
    def largest_file(self) -> int | None:
        """Bytes that a file may have to be put; None where that is not this side's to say."""
        ...

    def free_bytes(self) -> int | None:
        """Room for more files, None where nothing tells."""
        ...

    def create(self) -> None:
        """Make sure that the place is there."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Put a file in place in one step, over an older one."""
        ...

    def put_file(self, path: str, file: Path, *, lasting: bool = True) -> None:
        """Put a local file in place in one step, over an older one; it is not to change any more.

        Where that saves copying, the two names stand for the same file on the same disk.

        Args:
            path: of the file here.
            file: the local one.
            lasting: it outlasts a loss of power; else that may cut it short, or take it. Waiting
                for a disk to hold what is removed again soon would cost more than to make it.
        """
        ...

    def adopt(self, other: "Storage", path: str, to: str, size: int) -> bool:
        """Put a file of another storage in place, where none of its bytes need come here for that.

        On one disk it is a second name of the same file, in one store a copy that the store makes.

        Args:
            other: holds the file; `FileNotFoundError` where it does not.
            path: of the file there.
            to: of the file here.
            size: in bytes.

        Returns:
            Whether that could be done.
        """
        ...

    def read(self, path: str) -> bytes:
        """The content of a file; `FileNotFoundError` where there is none."""
        ...

    def read_into(self, path: str, room: memoryview, seen: Callable[[memoryview], object]) -> int:
        """Read a large file into memory that is there, or as much of it as there is room for.

        Args:
            path: of the file; `FileNotFoundError` where there is none.
            room: takes it.
            seen: called with all of it in order, blocks that a core has in its cache still.

        Returns:
            How many bytes came.
        """
        ...

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of a file; `FileNotFoundError` where there is none."""
        ...

    def read_range_into(
        self, path: str, start: int, room: memoryview, seen: Callable[[memoryview], object]
    ) -> None:
        """Fill memory that is there with the bytes of a file from `start` on, in one request.

        Args:
            path: of the file; `FileNotFoundError` where there is none.
            start: byte to begin with.
            room: takes them.
            seen: as for `read_into`.
        """
        ...

    def list(self, folder: str = "") -> dict[str, int]:
        """Every file below a folder, sorted: path relative to the root -> size in bytes."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; none there is no error."""
        ...

    def above(self) -> Iterator[tuple["Storage", str]]:
        """Each folder that it lies in, the nearest first, and its path below that one."""
        ...

    def leftovers(self) -> builtins.list[str]:
        """What killed runs left on its way, under no final name."""
        ...

    def remove_incoming(self) -> None:
        """Remove the leftovers; only for who holds the dataset."""
        ...

    def tidy(self, scratch: Path) -> None:
        """Remove what a run left on disks that was killed once its output was whole.

        Nothing is touched where another run is at work.

        Args:
            scratch: its folder for work in progress.
        """
        ...

    def exclusive(
        self, tell: Callable[[str], None] = lambda words: None
    ) -> AbstractContextManager[int | None]:
        """Hold the dataset against another run; `UsageError` where one is at work.

        Yields a file descriptor for worker processes to keep open, where that is how it is held.

        Args:
            tell: called with whom it waits for, where another run may be ending or dead.
        """
        ...

    def require_held(self) -> None:
        """Make sure that this run still holds what it took with `exclusive`."""
        ...

    def close(self) -> None:
        """Remove what is only needed while writing."""
        ...


Put = Callable[[str, Path], None]


@contextmanager
def uploads(storage: Storage, *, lasting: bool = True) -> Iterator[Put]:
    """Yields a `put` that may come back before the file is there; at the end all of them are.

    As many files are under way, and in memory, as the storage has use for.

    Args:
        storage: where they go.
        lasting: see `Storage.put_file`.

    Raises:
        StorageError: one of them could not be put; those under way are waited for.
    """
    at_once = storage.puts_at_once
    running: set[Future[None]] = set()

    def put(path: str, file: Path) -> None:
        nonlocal running
        if len(running) == at_once:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
        running.add(threads.submit(storage.put_file, path, file, lasting=lasting))

    with ThreadPoolExecutor(at_once, thread_name_prefix="shardmill-put") as threads:
        yield put
        for future in running:
            future.result()
