"""The files of an output, the bytes that a part made, and checks of the output's location."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, Self, TypeVar

import xxhash
from pydantic import Field

from streaming_ext.base.errors import DatasetError, UsageError
from streaming_ext.format.schema import HASH, Count, FileRecord, Hash, content_hash
from streaming_ext.store import Storage, open_storage
from streaming_ext.store.locations import local_path
from streaming_ext.store.scratch import user_scratch
from streaming_ext.text.sources.datasets import is_dataset
from tasks.core.options import Execution

_BLOCK = 8 * 2**20  # bytes per read
_SHOWN = 3  # files in a message
T = TypeVar("T")
# Stays inside the output: neither an absolute path nor `..` matches.
InsidePath = Annotated[
    str, Field(pattern=r"^(\.?[A-Za-z0-9_-][A-Za-z0-9._-]*/)*\.?[A-Za-z0-9_-][A-Za-z0-9._-]*$")
]


class Stretch(NamedTuple):
    """Consecutive bytes of a file, and their content hash."""

    path: InsidePath
    start: Count
    size: Count
    xxh128: Hash

    @classmethod
    def of(cls, file: FileRecord) -> Self:
        """Return the stretch of all bytes of a file."""
        return cls(file.path, 0, file.size, file.xxh128)


def file_sizes(stretches: Iterable[Stretch]) -> dict[str, int]:
    """Return the least size that each file must have, by its path."""
    sizes: dict[str, int] = {}
    for path, start, size, _ in stretches:
        sizes[path] = max(sizes.get(path, 0), start + size)
    return sizes


def all_sizes(output: Storage) -> dict[str, int]:
    """Return the size of every file of an output, by its path.

    `Storage.list` leaves out folders at the root that begin with a dot.
    """
    return {**output.list(), **output.list(".nv-meta")}


def lost_files(
    sizes: Mapping[str, int], wanted: Mapping[str, int], *, may_be_longer: bool = False
) -> list[str]:
    """Return the paths of files that are missing, or not as long as recorded.

    Args:
        sizes: the size of each file in bytes, by path, as `Storage.list` returns them.
        wanted: the recorded size of each file in bytes, by path.
        may_be_longer: True if files may hold more than is recorded.
    """
    return [
        path
        for path, size in wanted.items()
        if (held := sizes.get(path, -1)) != size and not (may_be_longer and held > size)
    ]


def all_recorded(records: Mapping[int, T], parts: Sequence[int], output: Storage) -> list[T]:
    """Return the records of some parts, in order.

    Args:
        records: the records that were read back from the output, by part.
        parts: the parts that must have a record.
        output: the output that holds the records.

    Raises:
        DatasetError: a record is gone.
    """
    if missing := [part for part in parts if part not in records]:
        raise DatasetError(
            f"{output}: the records of parts {missing[:5]} are gone; something removed them "
            "during the run. Run the same command again."
        )
    return [records[part] for part in parts]


def wrong_bytes(
    storage: Storage, stretch: Stretch, seen: Callable[[bytes], object] = lambda data: None
) -> str:
    """Describe how the bytes of a stretch differ from its hash; return "" if they do not.

    Args:
        storage: the storage that holds the file.
        stretch: the bytes to read, and their hash.
        seen: a function that is called with all bytes, a block at a time, in order.

    Raises:
        StorageError: they cannot be read, or the file is shorter.
    """
    path, first, size, wanted = stretch
    digest, end = xxhash.xxh3_128(), first + size
    try:
        for start in range(first, end, _BLOCK):
            data = storage.read_range(path, start, min(start + _BLOCK, end))
            digest.update(data)
            seen(data)
    except FileNotFoundError:
        return "missing"
    if (found := digest.hexdigest()) == wanted:
        return ""
    return f"bytes {first} to {end} have the {HASH} {found}, expected {wanted}"


def hash_of(output: Storage, path: str) -> str | None:
    """Return the content hash of a file, or None if the file is missing."""
    try:
        return content_hash(output.read(path))
    except FileNotFoundError:
        return None


def named(paths: list[str]) -> str:
    """Return the first paths and the number of the others, in words."""
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more files" if more > 0 else "")


def open_other(url: str, output: Storage) -> Storage:
    """Open a dataset that an output is made of.

    Raises:
        UsageError: the dataset is the output itself.
    """
    dataset = open_storage(url)
    if str(dataset) == str(output):
        raise UsageError(f"{output} is the dataset itself. Use another --output.")
    return dataset


def require_outside(storage: Storage) -> None:
    """Refuse an output inside a dataset, published or started; nothing is written.

    Raises:
        UsageError: the output lies inside a dataset; the message names it.
    """
    for above in storage.above():
        if is_dataset(above):
            raise UsageError(
                f"{storage} lies inside the dataset {above}, which would hold files then that "
                "belong to no part of it. Use another --output."
            )


def scratch_folder(config: Execution, storage: Storage) -> Path:
    """Return the folder for work in progress: in the configured folder, or in the storage's."""
    if config.scratch is None:
        return storage.scratch_parent / f".{storage.name}.scratch"
    return scratch_base(config, storage)


def scratch_base(config: Execution, storage: Storage) -> Path:
    """Return the folder for work in progress on this host: as configured, or a temporary one."""
    # Two outputs may have the same name: a hash of the path keeps their folders apart.
    name = f"{storage.name}-{content_hash(str(storage).encode())[:8]}"
    if config.scratch is None:
        return user_scratch() / name
    return local_path(config.scratch).absolute() / name
