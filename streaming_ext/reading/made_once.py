"""A file beside the cached shards that one process of a machine makes for all of them."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from streaming_ext.base.errors import CorruptDatasetError, StorageError, TransientStorageError

Opened = TypeVar("Opened")
_PATIENCE: Final = 3600.0  # seconds to wait for the process that makes a file
_PAUSE: Final = 0.05
NO_MAPS: Final = (
    "Raise the limits of this process (`ulimit -n`, `ulimit -v`) or keep fewer datasets open; "
    "where its file system maps no files, give local= a folder on a local disk."
)


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


_TAIL: Final = 24


def write_directory(file: BinaryIO, directory: Mapping[str, Any]) -> None:
    """End a file with a directory of it, as JSON, the length of that, and its XXH3-128."""
    data = json.dumps(directory).encode()
    file.write(data + len(data).to_bytes(8, "little") + xxhash.xxh3_128_digest(data))


def map_file(path: Path) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
    """The content of a file, mapped, and the directory at its end.

    Raises:
        FileNotFoundError: there is none.
        CorruptDatasetError: it is no such file.
        StorageError: it cannot be mapped.
    """
    size = path.stat().st_size
    if size < _TAIL:
        raise CorruptDatasetError(f"{size} bytes")
    try:
        data = np.asarray(np.memmap(path, np.uint8, "r"))
    except OSError as error:
        raise StorageError(f"{path} cannot be mapped: {error}. {NO_MAPS}") from error
    content, tail = data[:-_TAIL], data[-_TAIL:].tobytes()
    begin = max(0, len(content) - int.from_bytes(tail[:8], "little"))
    directory = content[begin:].tobytes()
    if xxhash.xxh3_128_digest(directory) != tail[8:]:
        raise CorruptDatasetError("its directory has another hash")
    found: dict[str, Any] = json.loads(directory)
    return content[:begin], found
