"""Fetching only some ranges of a remote file, where that saves enough.

The bytes are put where they belong into a file of the full length; the rest stays a hole that
whoever named the ranges does not look into.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from streaming_ext.text.sources.source_file import SourceFile

# Below this a request costs more than the bytes that it saves.
SMALLEST_FILE = 32 * 2**20
# Measured (benchmarks/README.md): a byte costs in ranges about what it costs in
# one stream, so any real saving counts. Where the listing tells a hash of the whole file, that
# check is given up only for a large saving.
WORTH_IT = 0.8
WORTH_A_HASH = 0.3
# The Hub's hashes, an ETag that may be an MD5, and Google's objects, of which it tells one.
_HASHED = re.compile(r"sha256:|git:|generation:|etag:[0-9a-f]{32}(-\d+)?$")
_MERGE_BYTES = 2**20
_CHUNK_BYTES = 8 * 2**20
_AT_ONCE = 4

Range = tuple[int, int]  # [start, end)


class Ranges(Protocol):
    """What reads a remote file."""

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end)."""
        ...


def worth_fetching(source: SourceFile, needed: Sequence[Range] | None) -> list[Range] | None:
    """The ranges to fetch of a file, merged where little lies between; None: all of it."""
    if needed is None or source.size < SMALLEST_FILE:
        return None
    found = merged(needed)
    share = sum(end - start for start, end in found) / source.size
    hashed = bool(_HASHED.match(source.version or ""))
    return found if share < (WORTH_A_HASH if hashed else WORTH_IT) else None


def merged(needed: Iterable[Range]) -> list[Range]:
    """Ranges in order, as one where little lies between."""
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
    """Fetch the ranges into a file with holes; returns how many bytes came.

    Beside it stands how many of its requests were answered, so that another attempt goes on there.
    """
    waiting = [
        (position, min(position + _CHUNK_BYTES, end))
        for start, end in ranges
        for position in range(start, end, _CHUNK_BYTES)
    ]
    told = f"{size} {waiting}"
    done = _answered(partial, told)
    fetched = 0
    have = sum(end - start for start, end in waiting[:done])
    with partial.open("r+b" if done else "wb") as file, ThreadPoolExecutor(_AT_ONCE) as threads:
        file.truncate(size)
        # So many at once that memory stays small, whatever the file's size.
        for first in range(done, len(waiting), _AT_ONCE):
            batch = waiting[first : first + _AT_ONCE]
            for (start, _), data in zip(
                batch, threads.map(lambda piece: reader.read(*piece), batch), strict=True
            ):
                file.seek(start)
                file.write(data)
                fetched += len(data)
            file.flush()
            _beside(partial).write_text(f"{first + len(batch)}\n{told}")
            report(have + fetched)
    return fetched


def forget_ranges(partial: Path) -> None:
    """Remove what stands beside such a file."""
    _beside(partial).unlink(missing_ok=True)


def _beside(partial: Path) -> Path:
    return partial.with_suffix(".answered")


def _answered(partial: Path, told: str) -> int:
    """How many of these requests an earlier attempt was answered."""
    try:
        done, _, before = _beside(partial).read_text().partition("\n")
    except FileNotFoundError:
        return 0
    return int(done) if before == told and partial.exists() else 0
