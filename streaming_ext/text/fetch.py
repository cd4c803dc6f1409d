"""Download of remote source files to scratch, and identities that pin the bytes of source files.

An interrupted download of a file is resumed, and a file is checked before it counts.

If that saves enough, only some ranges of a file are fetched. They are written at their offsets into
a file of the full length; the rest stays a hole.
"""

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import xxhash

from streaming_ext.base.errors import DamagedSourceError, SourceError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.record import LOCAL_VERSION, NOT_CHECKED, SourceIdentity
from streaming_ext.format.schema import content_hash
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store.scratch import writing_scratch
from streaming_ext.text.documents.files import LocalBytes, Span
from streaming_ext.text.formats import BY_NAME, TOKEN_SETS, format_of
from streaming_ext.text.sources.source_bytes import Reader, SourceFileBytes, open_reader
from streaming_ext.text.sources.source_file import SourceFile

Report = Callable[[int], None]  # called with the number of bytes on scratch

# Below this size a request costs more than the bytes that it saves.
SMALLEST_FILE = 32 * 2**20
# Measured (benchmarks/README.md): a byte costs about the same in ranges as in one stream, so any
# real saving counts. If the store has a hash of the whole file, only a large saving is worth giving
# up that check.
WORTH_IT = 0.8
WORTH_A_HASH = 0.3
# Versions with a hash: the Hub's, an ETag that may be an MD5, and most of Google's objects.
_HASHED = re.compile(r"sha256:|git:|generation:|etag:[0-9a-f]{32}$")
_MERGE_BYTES = 2**20
_CHUNK_BYTES = 8 * 2**20
_AT_ONCE = 4
_HASHES = ("sha256", "sha1", "md5", "crc32")  # that servers report, the best first
_READ_BYTES = 2**22
_HASHED_BYTES = 2**18  # stays in the cache of a core
_NAMED_HASH = re.compile(r"([A-Za-z0-9-]+)=:?([A-Za-z0-9+/]+=*)")
# Suffixes of files on scratch.
_DONE = ".source"
_PARTIAL = ".partial"  # the first bytes of a file
_WITH_HOLES = ".ranges"  # some ranges of a file
_UNCHECKED = ".unchecked"  # next to a file that was compared by its size alone


def local_name(source: SourceFile) -> str:
    """Return the beginning of a file's names on scratch; each version has its own."""
    digest = hashlib.sha256(f"{source.url}\n{source.size}\n{source.version}".encode())
    return digest.hexdigest()[:24]


def fetch(
    source: SourceFile,
    folder: Path,
    report: Report = lambda done: None,
    *,
    options: ReadOptions | None = None,
    span: Span | None = None,
) -> tuple[Path, int]:
    """Fetch a file, or the ranges of it that are read, into a file of full length on scratch.

    Bytes that an earlier attempt fetched are kept. A file in the Hub's local cache is used there.

    Args:
        source: the remote file.
        folder: a folder on scratch.
        report: a function that is called with the number of bytes on scratch.
        options: everything that will be read of the file; the rest may be left out, as a hole, if
            that saves much.
        span: the only span that will be read; requires `options`.

    Returns:
        The path, and the number of bytes fetched.

    Raises:
        SourceError: the file changed or is gone.
        StorageError: the server refuses or keeps failing, or scratch is full.
    """
    if source.url.startswith("hf://"):
        from streaming_ext.text.sources.hub import cached_file

        if (cached := cached_file(source)) is not None:
            _check_cached(source, cached, cached.stat().st_mtime_ns)
            return cached, 0
    name = local_name(source)
    complete = with_holes = folder / f"{name}{_DONE}"
    if options is not None:
        read = "\n".join((*options.columns, *options.compared, str(span)))
        digest = hashlib.sha256(read.encode()).hexdigest()[:8]
        with_holes = folder / f"{name}-{digest}{_DONE}"
    if span is not None:
        complete = with_holes  # a span has a file of its own
    for target in (complete, with_holes):
        if target.is_file() and target.stat().st_size == source.size:
            return target, 0
    reader = open_reader(source)
    with writing_scratch(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if options is not None and not complete.with_suffix(_PARTIAL).exists():
            ranges = _needed(source, options, span)
            if ranges is not None:
                return with_holes, _fetch_ranges(reader, ranges, source.size, with_holes, report)
        try:
            return complete, _fetch_complete(source, reader, complete, report)
        except DamagedSourceError:  # once more: the bytes may have changed on the way
            return complete, _fetch_complete(source, reader, complete, report)


def _needed(source: SourceFile, options: ReadOptions, span: Span | None) -> list[Span] | None:
    """Return the ranges to fetch; None for the whole file."""
    if span is None and source.size < SMALLEST_FILE:
        return None
    needed = format_of(source.url, options).needed(SourceFileBytes(source), options, span)
    return worth_fetching(source, needed) if span is None else merged(needed)


def worth_fetching(source: SourceFile, needed: Sequence[Span]) -> list[Span] | None:
    """Return the ranges of a file to fetch, close ones merged; None for the whole file."""
    if source.size < SMALLEST_FILE:
        return None
    found = merged(needed)
    fraction = sum(end - start for start, end in found) / source.size
    hashed = bool(_HASHED.match(source.version or ""))
    return found if fraction < (WORTH_A_HASH if hashed else WORTH_IT) else None


def merged(needed: Iterable[Span]) -> list[Span]:
    """Sort ranges, and merge close ones."""
    found: list[Span] = []
    for start, end in sorted(needed):
        if found and start - found[-1][1] <= _MERGE_BYTES:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _fetch_ranges(
    reader: Reader, ranges: Sequence[Span], size: int, target: Path, report: Report
) -> int:
    """Fetch ranges into a file with holes; return the number of bytes fetched."""
    partial = target.with_suffix(_WITH_HOLES)
    requests = [
        (position, min(position + _CHUNK_BYTES, end))
        for start, end in ranges
        for position in range(start, end, _CHUNK_BYTES)
    ]
    fetched = 0
    with partial.open("wb") as file:
        file.truncate(size)
        found = mapped_ahead(lambda request: reader.read(*request), requests, threads=_AT_ONCE)
        for (start, _), data in zip(requests, found, strict=True):
            file.seek(start)
            file.write(data)
            fetched += len(data)
            report(fetched)
    target.with_suffix(_UNCHECKED).touch()
    partial.replace(target)
    return fetched


def _fetch_complete(source: SourceFile, reader: Reader, target: Path, report: Report) -> int:
    """Fetch the missing rest of a file, and check the file; return the number of bytes fetched.

    Raises:
        DamagedSourceError: the content is not as listed.
    """
    partial = target.with_suffix(_PARTIAL)
    fetched = 0
    with partial.open("ab") as file:
        if file.tell() > source.size:
            file.truncate(0)
        done = file.tell()
        for data in reader.stream(done):
            file.write(data)
            done += len(data)
            fetched += len(data)
            report(done)
            file.flush()
    try:
        if not check_content(source, partial, reader.headers):
            target.with_suffix(_UNCHECKED).touch()
    except DamagedSourceError:
        partial.unlink()  # a damaged file must not be resumed
        raise
    partial.replace(target)
    return fetched


def check_content(
    source: SourceFile,
    path: Path,
    headers: Callable[[], Mapping[str, str]] = dict,
) -> bool:
    """Compare a fetched file with its listing, or with a hash in the server's headers.

    Args:
        source: the file as it was listed, with its size and perhaps a hash.
        path: the path of the fetched file.
        headers: a function that requests the headers of the source, in lower case.

    Returns:
        True if there was a hash to compare with.

    Raises:
        DamagedSourceError: the content is not as listed.
    """
    size = path.stat().st_size
    if size != source.size:
        raise DamagedSourceError(f"{source.url}: {size} bytes came, {source.size} were listed.")
    kind, _, expected = (source.version or "").partition(":")
    if kind not in {"sha256", "git"}:
        kind, expected = _hash_in(headers())
    if not expected:
        return False
    if (found := _hash_of(path, kind, size)) != expected:
        raise DamagedSourceError(
            f"{source.url}: the content that came has the {kind} {found}, its server reports "
            f"{expected}; it changed on the way or in the store. Run again."
        )
    return True


def _hash_in(headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the kind and the hexadecimal value of a hash of the whole file; empty without one."""
    named = f"{headers.get('repr-digest', '')},{headers.get('x-goog-hash', '')}"
    found = dict(_NAMED_HASH.findall(named.replace("sha-256", "sha256")))
    if "content-md5" in headers:
        found["md5"] = headers["content-md5"]
    for kind in _HASHES:
        text = found.get(kind, "")
        if headers.get("x-amz-checksum-type") != "COMPOSITE":
            text = headers.get(f"x-amz-checksum-{kind}", text)
        try:
            if value := base64.b64decode(text, validate=True).hex():
                return kind, value
        except binascii.Error:  # a hash of the chunks of a multipart upload
            continue
    return "", ""


def _hash_of(path: Path, kind: str, size: int) -> str:
    """Return a hash of a file, in hexadecimal; `git` is the hash by which Git names content."""
    with path.open("rb") as file:
        if kind == "crc32":
            value = 0
            while data := file.read(_READ_BYTES):
                value = zlib.crc32(data, value)
            return f"{value:08x}"
        start = hashlib.new("sha1" if kind == "git" else kind, usedforsecurity=False)
        if kind == "git":
            start.update(f"blob {size}\0".encode())
        return hashlib.file_digest(file, lambda: start).hexdigest()


@cache
def _check_cached(source: SourceFile, cached: Path, modified: int) -> None:
    """Compare a file of the Hub's cache with its hash, once per process."""
    check_content(source, cached)


def came_unchecked(path: Path) -> bool:
    """Return whether there was no hash to compare a file on scratch with."""
    return path.with_suffix(_UNCHECKED).exists()


def remove_fetched(path: Path) -> None:
    """Remove a file from scratch, and the mark that it is unchecked."""
    path.unlink(missing_ok=True)
    path.with_suffix(_UNCHECKED).unlink(missing_ok=True)


def identify(
    source: SourceFile,
    local: Path,
    *,
    span: Span | None = None,
    options: ReadOptions | None = None,
) -> SourceIdentity:
    """Pin the bytes of a source, or of a span of it, by the listed version or else by a hash.

    Args:
        source: the file as it was listed.
        local: the path of the file on this machine.
        span: the span to pin; the whole file by default.
        options: the columns that are read; by default all bytes are hashed, even with a span.

    Raises:
        SourceError: the file cannot be read, or has changed since it was listed.
    """
    file, chosen = LocalBytes(local, source.url), options or BY_NAME
    reads, ids = format_of(source.url, chosen), chosen.ids
    if source.beside and ids and TOKEN_SETS[ids.set_format].pinned(source, ids) != source:
        raise SourceError(
            f"{source.url}: the files that it is read with changed since the run began. Run again."
        )
    if file.size != source.size:
        raise SourceError(
            f"{source.url}: {file.size} bytes, but {source.size} when the run began. "
            "It is being written to; run again when it is complete."
        )
    if source.pin is not None:
        checked = NOT_CHECKED if came_unchecked(local) else None
        return SourceIdentity(url=source.url, size=source.size, version=source.pin, content=checked)
    hashed = xxhash.xxh3_128()
    if span and options:
        for start, end in reads.needed(file, options, span):
            for first in range(start, end, _HASHED_BYTES):
                hashed.update(file.read(first, min(first + _HASHED_BYTES, end)))
    else:
        with file.open() as raw:
            while data := raw.read(_HASHED_BYTES):
                hashed.update(data)
    digest = hashed.hexdigest()
    if further := reads.outside(local, chosen, span):
        digest = content_hash("".join([digest, *further]).encode())
    return SourceIdentity(url=source.url, size=source.size, version=f"{LOCAL_VERSION}{digest}")
