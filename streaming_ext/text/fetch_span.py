"""Bringing a span of a remote source file to scratch: its own bytes, resumed where it was cut.

They are put where they belong into a file of the full length, whose rest stays a hole.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from streaming_ext.base.errors import ScratchError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.files import Span
from streaming_ext.text.fetch import (
    CountedBytes,
    check_content,
    local_name,
    note_unchecked,
)
from streaming_ext.text.formats import format_of
from streaming_ext.text.sources.ranges import fetch_ranges, forget_ranges, merged
from streaming_ext.text.sources.source_bytes import open_reader
from streaming_ext.text.sources.source_file import SourceFile


def fetch_span(
    source: SourceFile,
    folder: Path,
    report: Callable[[int], None] = lambda done: None,
    *,
    options: ReadOptions,
    span: Span,
) -> tuple[Path, int]:
    """Bring what it takes to read a span; returns where it lies, and how many bytes came for it.

    What an earlier attempt brought is kept. A file that the Hub's local cache holds is used there.

    Args:
        source: remote.
        folder: on scratch.
        report: called with the bytes of the span that are here.
        options: all that will be read of it.
        span: of the span.

    Raises:
        SourceError: the file changed or is gone.
        StorageError: as `fetch`.
    """
    if source.url.startswith("hf://"):
        from streaming_ext.text.sources.hub import cached_file

        if (cached := cached_file(source)) is not None:
            _check_once(source, cached)
            return cached, 0
    told = "\n".join((*options.columns, *options.compared, str(span)))
    digest = hashlib.sha256(told.encode()).hexdigest()[:8]
    target = folder / f"{local_name(source).partition('.')[0]}-{digest}.source"
    if target.is_file() and target.stat().st_size == source.size:
        return target, 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return target, _fetch(source, target, report, options, span)
    except OSError as error:
        raise ScratchError(f"Cannot write to scratch {folder}: {error.strerror}.") from error


def _fetch(
    source: SourceFile,
    target: Path,
    report: Callable[[int], None],
    options: ReadOptions,
    span: Span,
) -> int:
    reader, reads = open_reader(source), format_of(source.url, options)
    file = CountedBytes(source.url, source.size, reader)
    ranges = merged(reads.needed(file, options, span))
    partial = target.with_suffix(".partial")
    fetched = fetch_ranges(reader, ranges, source.size, partial, report)
    reader.check()
    note_unchecked(target)
    forget_ranges(partial)  # first: they must not outlive it
    partial.replace(target)
    return fetched + file.fetched


@cache
def _check_once(source: SourceFile, cached: Path) -> None:
    """Compare a file of the Hub's cache with its hash, once for all its spans of a process."""
    check_content(source, cached)
