"""What pins the bytes of a source file, or of a span of it."""

import hashlib
from pathlib import Path

import xxhash

from streaming_ext.base.errors import SourceError, reason_of
from streaming_ext.format.record import LOCAL_VERSION, NOT_CHECKED, SourceIdentity
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.files import LocalBytes, Span
from streaming_ext.text.fetch import came_unchecked
from streaming_ext.text.formats import TOKEN_SETS, format_of
from streaming_ext.text.sources import SourceFile

_READ_BYTES = 2**18  # stays in the cache of a core


def hash_file(path: Path) -> str:
    """XXH3-128 of a file's content, as hex.

    Raises:
        SourceError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()  # type: ignore[arg-type]
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {reason_of(error)}.") from error


def _hash_ranges(file: LocalBytes, ranges: tuple[Span, ...]) -> str:
    """XXH3-128 of some ranges of a file, as hex."""
    digest = xxhash.xxh3_128()
    for start, end in ranges:
        for first in range(start, end, _READ_BYTES):
            digest.update(file.read(first, min(first + _READ_BYTES, end)))
    return digest.hexdigest()


def identify(
    source: SourceFile,
    local: Path,
    *,
    span: Span | None = None,
    options: ReadOptions | None = None,
) -> SourceIdentity:
    """Pin the bytes of a source, or of a span of it, by the listed version, else by a hash.

    Args:
        source: the file as it was listed.
        local: its path on this machine.
        span: all of the file by default.
        options: which text of it is read.

    Raises:
        SourceError: it cannot be read, or changed since it was listed.
    """
    ids = None if options is None else options.ids
    if source.beside and ids and TOKEN_SETS[ids.set_format].pinned(source, ids) != source:
        raise SourceError(
            f"{source.url}: the files that it is read with changed since the run began. Run again."
        )
    reads = format_of(source.url, options)
    file = LocalBytes(local, source.url)
    if file.size != source.size:
        raise SourceError(
            f"{source.url}: {file.size} bytes, but {source.size} when the run began. "
            "It is being written to; run again when it is complete."
        )
    if source.pin is not None:
        checked = NOT_CHECKED if came_unchecked(local) else None
        return SourceIdentity(url=source.url, size=source.size, version=source.pin, content=checked)
    if span is None or options is None:
        digest = hash_file(local)
    else:
        digest = _hash_ranges(file, reads.needed(file, options, span))
    further = [hash_file(path) for path in reads.beside(local)]
    if options is not None and (outside := reads.outside(local, options, span)):
        further.append(xxhash.xxh3_128_hexdigest(outside))
    if further:
        digest = xxhash.xxh3_128_hexdigest("".join([digest, *further]).encode())
    return SourceIdentity(url=source.url, size=source.size, version=f"{LOCAL_VERSION}{digest}")
