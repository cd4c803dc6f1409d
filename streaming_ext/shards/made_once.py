"""A file beside the cached shards that one process of a machine makes for all of them."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from streaming_ext.errors import CorruptDatasetError, StorageError, TransientStorageError

Opened = TypeVar("Opened")
_PATIENCE: Final = 3600.0  # seconds to wait for the process that makes a file
_PAUSE: Final = 0.05


def made_once(
    path: Path,
    *,
    what: str,
    opened: Callable[[Path], Opened],
    make: Callable[[BinaryIO], None],
) -> Opened:
    """Open a file; where there is none, or a damaged one, one process makes it, others wait.

    Args:
        path: of the file.
        what: it is, for messages.
        opened: opens it.
        make: writes it.

    Raises:
        StorageError: it cannot be kept.
    """
    try:
        with contextlib.suppress(FileNotFoundError, CorruptDatasetError):  # made below
            return opened(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            with contextlib.suppress(FileNotFoundError, CorruptDatasetError):  # by another process
                return opened(path)
            for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # of processes that died
                leftover.unlink(missing_ok=True)
            temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
            try:
                with temporary.open("wb") as file:
                    make(file)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        return opened(path)
    except OSError as error:
        raise StorageError(
            f"{what} cannot be kept as {path}: {error}. Give local= a folder on a local "
            "disk that this user may write, and remote= the dataset."
        ) from error


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one thread of one process make a file; the kernel frees the lock of who was killed."""
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TransientStorageError(
                        f"Another process makes {path} for over {_PATIENCE:g} s. Is it stopped?"
                    ) from None
                time.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)
