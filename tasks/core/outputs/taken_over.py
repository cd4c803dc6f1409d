"""What earlier runs finished is taken over: only where each byte still has the recorded hash."""

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, Self, TypeVar

import xxhash

from streaming_ext.dataset.hashing import HASH
from streaming_ext.dataset.schema import FileRecord
from tasks.core.storage import Storage

_BLOCK = 8 * 2**20  # bytes that are read at once
_IO_THREADS = 8
_log = logging.getLogger(__name__)


class Stretch(NamedTuple):
    """Consecutive bytes of a file and their content hash."""

    path: str
    start: int
    size: int
    xxh128: str

    @classmethod
    def of(cls, file: FileRecord) -> Self:
        """A whole file."""
        return cls(file.path, 0, file.size, file.xxh128)


class Finished(NamedTuple):
    """The bytes of the parts that earlier runs finished.

    Attributes:
        storage: that holds them.
        parts: of each part, by its number.
    """

    storage: Storage
    parts: Mapping[int, Iterable[Stretch]]


class Resumable(Protocol):
    """A plan that takes over what earlier runs finished."""

    def finished(self, output: Storage) -> Finished:
        """What it takes over."""
        ...

    def with_again(self, parts: frozenset[int]) -> Self:
        """The same, with some of these parts to be made again."""
        ...


Plan = TypeVar("Plan", bound=Resumable)


def without_damaged(plan: Plan, output: Storage, tell: Callable[[str], None]) -> Plan:
    """A plan that takes over what is as it was written; parts that were damaged are made again.

    What was finished is read from the beginning to the end. The caller holds the output.

    Args:
        plan: of what to do.
        output: of the run.
        tell: called with what is waited for.

    Raises:
        StorageError: a file cannot be read.
    """
    finished = plan.finished(output)
    if not finished.parts:
        return plan
    tell("checking what earlier runs finished")
    damaged = damaged_parts(finished)
    return plan.with_again(damaged) if damaged else plan


def damaged_parts(finished: Finished) -> frozenset[int]:
    """The parts of which a byte is not the recorded one; the first of each is logged.

    Raises:
        StorageError: a file cannot be read.
    """
    storage, parts = finished

    def problem(part: int) -> str:
        for stretch in parts[part]:
            if words := wrong_bytes(storage, stretch):
                return f"{stretch.path}: {words}"
        return ""

    with ThreadPoolExecutor(_IO_THREADS) as threads:
        found = dict(zip(parts, threads.map(problem, parts), strict=True))
    for words in filter(None, found.values()):
        _log.warning("%s/%s. It is made again.", storage, words)
    return frozenset(part for part, words in found.items() if words)


def wrong_bytes(storage: Storage, stretch: Stretch) -> str:
    """What is wrong with some bytes; "" where they are as recorded.

    Raises:
        StorageError: they cannot be read, or the file is shorter.
    """
    path, first, size, wanted = stretch
    digest, end = xxhash.xxh3_128(), first + size
    try:
        for start in range(first, end, _BLOCK):
            digest.update(storage.read_range(path, start, min(start + _BLOCK, end)))
    except FileNotFoundError:
        return "missing"
    if (found := digest.hexdigest()) == wanted:
        return ""
    return f"bytes {first} to {end} have the {HASH} {found}, expected {wanted}"
