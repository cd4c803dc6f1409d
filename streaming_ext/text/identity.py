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
            digest = hashlib.file_digest(file, xxhash.xxh3_128)  # type: ignore[arg-type]
            return digest.hexdigest()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {reason_of(error)}.") from error


def _hash_span(source: SourceFile, local: Path, span: Span, options: ReadOptions) -> str:
    """XXH3-128 of all that reading a span of a file takes, as hex."""
    digest = xxhash.xxh3_128()
    file = LocalBytes(local, source.url)
    for start, end in format_of(source.url, options).needed(file, options, span):
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
    """Pin the bytes of a source file, or of a span of it, by a hash.

    Args:
        source: the file as it was listed.
        local: its path on this machine.
        span: all of the file by default.
        options: which text of it is read.

    Raises:
        SourceError: it cannot be read, or its size is not the listed one.
    """
    _require_size(source, local)
    if span is None or options is None:
        digest = hash_file(local)
    else:
        digest = _hash_span(source, local, span, options)
    reads = format_of(source.url, options)
    further = [hash_file(file) for file in reads.beside(local)]
    if options is not None and (outside := reads.outside(local, options, span)):
        further.append(xxhash.xxh3_128_hexdigest(outside))
    if further:
        digest = xxhash.xxh3_128_hexdigest("".join([digest, *further]).encode())
    version = f"{LOCAL_VERSION}{digest}"
    return SourceIdentity(url=source.url, size=source.size, version=version)


def _require_size(source: SourceFile, local: Path) -> None:
    try:
        size = local.stat().st_size
    except OSError as error:
        raise SourceError(f"{source.url}: cannot be read: {reason_of(error)}.") from error
    if size != source.size:
        raise SourceError(
            f"{source.url}: {size} bytes, but {source.size} when the run began. "
            "It is being written to; run again when it is complete."
        )


def identity_of(
    source: SourceFile,
    local: Path,
    *,
    span: Span | None = None,
    options: ReadOptions | None = None,
) -> SourceIdentity:
    """What pins a source, or a span of it: the listed version, else a hash; see `identify`.

    Raises:
        SourceError: it cannot be read, or changed since it was listed.
    """
    if source.pin is None:
        return identify(source, local, span=span, options=options)
    ids = None if options is None else options.ids
    if source.beside and ids and TOKEN_SETS[ids.set_format].pinned(source, ids) != source:
        raise SourceError(f"{source.url}: files beside it changed since the run began. Run again.")
    _require_size(source, local)
    checked = NOT_CHECKED if came_unchecked(local) else None
    return SourceIdentity(url=source.url, size=source.size, version=source.pin, content=checked)
