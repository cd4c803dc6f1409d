"""Fetching remote source files to scratch: resumed after a cut, checked before they count."""

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from streaming_ext.base.errors import SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store.scratch import writing_scratch
from streaming_ext.text.documents.files import Span
from streaming_ext.text.formats import format_of
from streaming_ext.text.sources.ranges import (
    SMALLEST_FILE,
    Range,
    fetch_ranges,
    forget_ranges,
    merged,
    worth_fetching,
)
from streaming_ext.text.sources.source_bytes import Reader, open_reader
from streaming_ext.text.sources.source_file import SourceFile

_HASHES = ("sha256", "sha1", "md5", "crc32")  # that servers report, the best first
_UNCHECKED = ".unchecked"  # beside a file of which only the size was compared
_READ_BYTES = 2**22
_REPRESENTATION = re.compile(r"([A-Za-z0-9-]+)=:([A-Za-z0-9+/=]+):")
_GOOGLE = re.compile(r"md5=([A-Za-z0-9+/=]+)")


class DamagedSourceError(SourceError):
    """The bytes that came are not those that were listed, or whose hash the server reports."""


def local_name(source: SourceFile) -> str:
    """The name of a file on scratch: another version never takes its place."""
    digest = hashlib.sha256(f"{source.url}\n{source.size}\n{source.version}".encode())
    return f"{digest.hexdigest()[:24]}.source"


def fetch(
    source: SourceFile,
    folder: Path,
    report: Callable[[int], None] = lambda done: None,
    *,
    options: ReadOptions | None = None,
    span: Span | None = None,
) -> tuple[Path, int]:
    """Fetch a file, or what reading it takes, into a file of the same length on scratch.

    What an earlier attempt fetched is kept. A file in the Hub's local cache is used there.

    Args:
        source: remote.
        folder: on scratch.
        report: called with the bytes that are here.
        options: all that will be read of it; the rest may be left out, as a hole, if that saves
            much.
        span: the only span that will be read; needs `options`.

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
    target = folder / local_name(source)
    if span is not None and options is not None:
        target = _with_options(target, options, span)
    if target.is_file() and target.stat().st_size == source.size:
        return target, 0
    reader = open_reader(source)
    with writing_scratch(folder):
        folder.mkdir(parents=True, exist_ok=True)
        ranges, looked = _needed(source, reader, target, options, span)
        if ranges is None or options is None:
            try:
                return target, _fetch_whole(source, reader, target, report)
            except DamagedSourceError:  # once more: it may have changed on the way
                return target, _fetch_whole(source, reader, target, report)
        target = target if span is not None else _with_options(target, options, None)
        fetched = fetch_ranges(reader, ranges, source.size, _partial(target), report)
        _unchecked(target).touch()
        forget_ranges(_partial(target))  # first: they must not outlive it
        _partial(target).replace(target)
        return target, looked + fetched


def _needed(
    source: SourceFile,
    reader: Reader,
    target: Path,
    options: ReadOptions | None,
    span: Span | None,
) -> tuple[list[Range] | None, int]:
    """The ranges to fetch, None for the whole file; and the bytes that it took to find them."""
    if options is None:
        return None, 0
    file = CountedBytes(source.url, source.size, reader)
    reads = format_of(source.url, options)
    if span is not None:
        return merged(reads.needed(file, options, span)), file.fetched
    if source.size < SMALLEST_FILE or _partial(target).exists():
        return None, 0
    look = reads.look(file, options)
    return worth_fetching(source, None if look is None else look.needed), file.fetched


def _fetch_whole(
    source: SourceFile, reader: Reader, target: Path, report: Callable[[int], None]
) -> int:
    """Fetch what is missing of a file, and check it; returns the number of bytes that came.

    Raises:
        DamagedSourceError: it is another one.
    """
    partial = _partial(target)
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
            _unchecked(target).touch()
    except DamagedSourceError:
        partial.unlink()  # a damaged file must not be resumed
        raise
    partial.replace(target)
    return fetched


def _with_options(target: Path, options: ReadOptions, span: Span | None) -> Path:
    """The path of a file that holds only what some options read."""
    read = "\n".join((*options.columns, *options.compared, str(span)))
    digest = hashlib.sha256(read.encode()).hexdigest()[:8]
    return target.with_name(f"{target.stem}-{digest}.source")


def _partial(target: Path) -> Path:
    return target.with_suffix(".partial")


def _unchecked(target: Path) -> Path:
    return target.with_suffix(_UNCHECKED)


class CountedBytes:
    """A remote file that counts the bytes fetched."""

    def __init__(self, name: str, size: int, reader: Reader) -> None:
        self.name, self.size, self._reader = name, size, reader
        self.fetched = 0

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end)."""
        self.fetched += end - start
        return self._reader.read(start, end)


def check_content(
    source: SourceFile,
    path: Path,
    headers: Callable[[], Mapping[str, str]] = dict,
) -> bool:
    """Compare a fetched file with its listing, or with a hash in the server's headers.

    Args:
        source: as it was listed, with its size and perhaps a hash.
        path: of the fetched file.
        headers: requests the headers of the source, in lower case.

    Returns:
        Whether there was a hash to compare with.

    Raises:
        DamagedSourceError: it is another file.
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
    """The kind and the hexadecimal value of a hash of the whole file; empty if there is none."""
    found = dict(
        _REPRESENTATION.findall(headers.get("repr-digest", "").replace("sha-256", "sha256"))
    )
    if google := _GOOGLE.search(headers.get("x-goog-hash", "")):
        found["md5"] = google[1]
    if "content-md5" in headers:
        found["md5"] = headers["content-md5"]
    for kind in _HASHES:
        text = found.get(kind, "")
        if headers.get("x-amz-checksum-type") != "COMPOSITE":
            text = headers.get(f"x-amz-checksum-{kind}", text)
        try:
            if value := base64.b64decode(text, validate=True).hex():
                return kind, value
        except binascii.Error:  # of the chunks of a multipart upload
            continue
    return "", ""


def _hash_of(path: Path, kind: str, size: int) -> str:
    """A hash of a file, in hexadecimal; `git` is the hash by which Git names its content."""
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
    """Whether there was no hash to compare a file on scratch with."""
    return _unchecked(path).exists()


def remove_fetched(path: Path) -> None:
    """Remove a file from scratch, and what lies beside it."""
    path.unlink(missing_ok=True)
    _unchecked(path).unlink(missing_ok=True)
