"""A file in the cache that one process of a machine makes for all of them."""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import CorruptDatasetError, StorageError
from streaming_ext.store.file_lock import alone

Opened = TypeVar("Opened")
_PATIENCE: Final = 3600.0  # seconds to wait for the process that makes a file
NO_MAPS: Final = (
    "Raise the limits of this process (`ulimit -n`, `ulimit -v`) or keep fewer datasets open; "
    "where its file system maps no files, give local= a folder on a local disk."
)


def made_once(
    path: Path, *, opened: Callable[[Path], Opened], make: Callable[[BinaryIO], None]
) -> Opened:
    """Open a file; if it is missing or damaged, one process makes it while others wait.

    Args:
        path: the path of the file.
        opened: the function that opens the file.
        make: the function that writes the file.

    Raises:
        StorageError: the file cannot be kept.
    """
    try:
        with contextlib.suppress(FileNotFoundError, CorruptDatasetError):  # made below
            return opened(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path.with_suffix(".lock"), patience=_PATIENCE, what=str(path)):
            with contextlib.suppress(FileNotFoundError, CorruptDatasetError):  # by another process
                return opened(path)
            with written_atomically(path) as temporary, temporary.open("wb") as file:
                make(file)
        return opened(path)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be kept: {error}. Give local= a folder on a local disk that this user "
            "may write, and remote= the dataset."
        ) from error


@contextlib.contextmanager
def written_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary name for a file and rename it at the end; the caller holds its lock."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # of processes that died
        leftover.unlink(missing_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp"
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


_TAIL: Final = 24


def write_directory(file: BinaryIO, directory: Mapping[str, Any]) -> None:
    """End a file with its directory as JSON, the length of the directory and its XXH3-128."""
    data = json.dumps(directory).encode()
    file.write(data + len(data).to_bytes(8, "little") + xxhash.xxh3_128_digest(data))


def write_words(file: BinaryIO, arrays: Iterable[Ints]) -> str:
    """Write words of 8 bytes, and return their XXH3-128."""
    digest = xxhash.xxh3_128()
    for array in arrays:
        data = array.astype("<i8").tobytes()
        digest.update(data)
        file.write(data)
    return digest.hexdigest()


def damaged(path: Path, cause: str) -> CorruptDatasetError:
    """Return the error for a file that must be made again."""
    return CorruptDatasetError(f"{path} is damaged: {cause}. Remove it: it is made again.")


def map_file(path: Path, **expected: object) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
    """Map the content of a file, and read the directory at its end.

    Args:
        path: the path of the file.
        expected: the values that fields of the directory must have.

    Raises:
        FileNotFoundError: the file does not exist.
        CorruptDatasetError: it is no such file, or was made for other fields.
        StorageError: the system cannot map the file.
    """
    size = path.stat().st_size
    if size < _TAIL:
        raise damaged(path, f"{size} bytes")
    try:
        data = np.asarray(np.memmap(path, np.uint8, "r"))
    except OSError as error:
        raise StorageError(f"{path} cannot be mapped: {error}. {NO_MAPS}") from error
    content, tail = data[:-_TAIL], data[-_TAIL:].tobytes()
    begin = max(0, len(content) - int.from_bytes(tail[:8], "little"))
    directory = content[begin:].tobytes()
    if xxhash.xxh3_128_digest(directory) != tail[8:]:
        raise damaged(path, "its directory has another hash")
    found: dict[str, Any] = json.loads(directory)
    if came := {name: found[name] for name in expected if found[name] != expected[name]}:
        raise damaged(path, f"it has {came}, expected {expected}")
    return content[:begin], found


class MappedWords:
    """A mapped file of words that `write_words` wrote.

    Attributes:
        version: the version in the directory of the file.
        path: the path of the file.
        words: the words.
        directory: the directory of the file.
    """

    version: ClassVar[int]

    def __init__(self, path: Path, *, verify: bool = True) -> None:
        """Open a file.

        Args:
            path: the path of the file.
            verify: True to compare the content with its hash.

        Raises:
            FileNotFoundError: the file does not exist.
            CorruptDatasetError: it is damaged, or was made by another version.
            StorageError: the system cannot map the file.
        """
        self.path = path
        data, self.directory = map_file(path, version=self.version)
        if verify and xxhash.xxh3_128_hexdigest(data.data) != self.directory["xxh128"]:
            raise damaged(path, "its content has another hash")
        self.words: Ints = data.view("<i8")

    def __reduce__(self) -> tuple[Any, ...]:
        """Map the file in another process, without verifying it again."""
        return partial(type(self), verify=False), (self.path,)
