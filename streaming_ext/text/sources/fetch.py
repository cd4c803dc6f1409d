"""Bringing a remote source file to scratch: resumed where it was cut, checked before it counts."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from streaming_ext.dataset.manifest import SourceIdentity
from streaming_ext.errors import SourceError, StorageError, UsageError
from streaming_ext.text.documents.formats import format_of
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.sources.local import identify
from streaming_ext.text.sources.ranges import SMALLEST_FILE, fetch_ranges, worth_fetching
from streaming_ext.text.sources.source_file import SourceFile

_HASH_BYTES = 2**22


class Reader(Protocol):
    """One remote file."""

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end)."""
        ...

    def stream(self, start: int) -> Iterator[bytes]:
        """All bytes from `start` on."""
        ...

    def check(self) -> None:
        """Make sure that what was read is what was listed."""
        ...


def open_reader(source: SourceFile) -> Reader:
    """A reader of a remote file, by the scheme of its URL."""
    scheme = source.url.partition("://")[0]
    if scheme == "hf":
        from streaming_ext.text.sources.hub import HubReader

        return HubReader(source)
    if scheme in {"http", "https"}:
        from streaming_ext.text.sources.web import WebReader, explain_web

        return WebReader(
            source, source.url, headers={}, explain=lambda r: explain_web(source.url, r)
        )
    from streaming_ext.text.sources.objects import ObjectReader

    return ObjectReader(source)


def local_name(source: SourceFile) -> str:
    """What a file is called on scratch: another version never takes an older one's place."""
    digest = hashlib.sha256(f"{source.url}\n{source.size}\n{source.version}".encode())
    return f"{digest.hexdigest()[:24]}.source"


def fetch(
    source: SourceFile,
    folder: Path,
    report: Callable[[int], None] = lambda done: None,
    *,
    options: ReadOptions | None = None,
) -> tuple[Path, int]:
    """Bring a file to `folder`; returns its path there, and how many bytes were fetched for it.

    What an earlier attempt brought is kept. A file that the Hub's local cache holds is used there.

    Args:
        report: called with the bytes that are here.
        options: all that will be read of it; the rest may be left out where that saves much.

    Raises:
        SourceError: the file changed or is gone.
        StorageError: the server refuses, or fails again and again (`TransientStorageError`);
            scratch is full.
    """
    if source.url.startswith("hf://"):
        from streaming_ext.text.sources.hub import cached_file

        if (cached := cached_file(source)) is not None:
            check_content(source, cached)
            return cached, 0
    target = folder / local_name(source)
    partial = target.with_suffix(".partial")
    if target.is_file() and target.stat().st_size == source.size:
        return target, 0
    reader = open_reader(source)
    fetched = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if options is not None and source.size >= SMALLEST_FILE and not partial.exists():
            found = _fetch_needed(source, reader, folder, options)
            if found is not None:
                reader.check()
                return found
        with partial.open("ab") as file:
            if file.tell() > source.size:
                file.truncate(0)
            have = file.tell()
            for data in reader.stream(have):
                file.write(data)
                have += len(data)
                fetched += len(data)
                report(have)
                file.flush()
    except OSError as error:
        raise StorageError(f"Cannot write to scratch {folder}: {error.strerror}.") from error
    reader.check()
    try:
        check_content(source, partial)
    except SourceError:
        partial.unlink()  # or it would be taken up again for ever
        raise
    partial.replace(target)
    return target, fetched


def _fetch_needed(
    source: SourceFile, reader: Reader, folder: Path, options: ReadOptions
) -> tuple[Path, int] | None:
    """Fetch what is needed of a file, where that is worth it; path and bytes, or None."""
    file = _Counted(source.url, source.size, reader)
    look = format_of(source.url).look(file, options)
    ranges = worth_fetching(source, None if look is None else look.needed)
    if ranges is None:
        return None
    digest = hashlib.sha256(options.column.encode()).hexdigest()[:8]
    target = folder / f"{local_name(source).partition('.')[0]}-{digest}.source"
    partial = target.with_suffix(".partial")
    fetched = fetch_ranges(reader, ranges, source.size, partial)
    partial.replace(target)
    return target, fetched + file.fetched


class _Counted:
    """A remote file that counts the bytes that came."""

    def __init__(self, name: str, size: int, reader: Reader) -> None:
        self.name, self.size, self._reader = name, size, reader
        self.fetched = 0

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end)."""
        self.fetched += end - start
        return self._reader.read(start, end)


def check_content(source: SourceFile, path: Path) -> None:
    """Compare a fetched file with the size and, where there is one, the hash of its listing.

    Raises:
        SourceError: it is another one.
    """
    size = path.stat().st_size
    if size != source.size:
        raise SourceError(f"{source.url}: {size} bytes came, {source.size} were listed.")
    kind, _, expected = (source.version or "").partition(":")
    if kind not in {"sha256", "git"}:
        return
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(usedforsecurity=False)
    if kind == "git":
        digest.update(f"blob {size}\0".encode())
    with path.open("rb") as file:
        while data := file.read(_HASH_BYTES):
            digest.update(data)
    if digest.hexdigest() != expected:
        raise SourceError(
            f"{source.url}: the content that came has the {kind} {digest.hexdigest()}, "
            f"{expected} was listed. Run again."
        )


def identity_of(source: SourceFile, local: Path) -> SourceIdentity:
    """What pins a source whose bytes lie at `local`.

    Raises:
        SourceError: they cannot be read, or are not as many as listed.
    """
    if source.version is None:
        return identify(source, local)
    if local.stat().st_size != source.size:
        raise SourceError(
            f"{source.url}: {local.stat().st_size} bytes on scratch, {source.size} were listed."
        )
    return SourceIdentity(url=source.url, size=source.size, version=source.version)


def listed_again(identity: SourceIdentity) -> SourceFile:
    """A recorded source as it is now.

    Raises:
        SourceError: it is gone.
        StorageError: the server refuses or does not answer.
    """
    from streaming_ext.text.sources.listing import list_sources

    if identity.version.startswith(("sha256:", "git:")):  # its URL names the commit
        return SourceFile(url=identity.url, size=identity.size, version=identity.version)
    try:
        (now,) = list_sources([identity.url])
    except UsageError as error:
        raise SourceError(f"{identity.url}: gone ({error})") from error
    return now
