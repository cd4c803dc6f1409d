"""Fetching only some ranges of a remote file, if that saves enough.

The bytes are written at their offsets into a file of the full length; the rest stays a hole.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from streaming_ext.text.sources.source_file import SourceFile

# Below this size a request costs more than the bytes that it saves.
SMALLEST_FILE = 32 * 2**20
# Measured (benchmarks/README.md): a byte costs in ranges about what it costs in one stream, so any
# real saving counts. If the store has a hash of the whole file, only a large saving is worth giving
# up that check.
WORTH_IT = 0.8
WORTH_A_HASH = 0.3
# The Hub's hashes, an ETag that may be an MD5, and Google's objects, most of which have one.
_HASHED = re.compile(r"sha256:|git:|generation:|etag:[0-9a-f]{32}$")
_MERGE_BYTES = 2**20
_CHUNK_BYTES = 8 * 2**20
_AT_ONCE = 4

Range = tuple[int, int]  # [start, end)


class Ranges(Protocol):
    """The reader of a remote file."""

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end)."""
        ...


def worth_fetching(source: SourceFile, needed: Sequence[Range] | None) -> list[Range] | None:
    """The ranges to fetch of a file, close ones merged; None for all of it."""
    if needed is None or source.size < SMALLEST_FILE:
        return None
    found = merged(needed)
    fraction = sum(end - start for start, end in found) / source.size
    hashed = bool(_HASHED.match(source.version or ""))
    return found if fraction < (WORTH_A_HASH if hashed else WORTH_IT) else None


def merged(needed: Iterable[Range]) -> list[Range]:
    """Ranges in order, close ones as one."""
    found: list[Range] = []
    for start, end in sorted(needed):
        if found and start - found[-1][1] <= _MERGE_BYTES:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def fetch_ranges(
    reader: Ranges,
    ranges: Sequence[Range],
    size: int,
    partial: Path,
    report: Callable[[int], None] = lambda done: None,
) -> int:
    """Fetch the ranges into a file with holes; returns the number of bytes that came.

    A file beside it holds the number of answered requests, so that another attempt resumes there.
    """
    waiting = [
        (position, min(position + _CHUNK_BYTES, end))
        for start, end in ranges
        for position in range(start, end, _CHUNK_BYTES)
    ]
    plan = f"{size} {waiting}"
    done = _answered(partial, plan)
    fetched = 0
    have = sum(end - start for start, end in waiting[:done])
    with partial.open("r+b" if done else "wb") as file, ThreadPoolExecutor(_AT_ONCE) as threads:
        file.truncate(size)
        # Batches keep memory small, whatever the size of the file.
        for first in range(done, len(waiting), _AT_ONCE):
            batch = waiting[first : first + _AT_ONCE]
            for (start, _), data in zip(
                batch, threads.map(lambda chunk: reader.read(*chunk), batch), strict=True
            ):
                file.seek(start)
                file.write(data)
                fetched += len(data)
            file.flush()
            _beside(partial).write_text(f"{first + len(batch)}\n{plan}")
            report(have + fetched)
    return fetched


def forget_ranges(partial: Path) -> None:
    """Remove the file beside it."""
    _beside(partial).unlink(missing_ok=True)


def _beside(partial: Path) -> Path:
    return partial.with_suffix(".answered")


def _answered(partial: Path, plan: str) -> int:
    """How many of these requests were answered in an earlier attempt."""
    try:
        done, _, before = _beside(partial).read_text().partition("\n")
    except FileNotFoundError:
        return 0
    return int(done) if before == plan and partial.exists() else 0
