"""Bringing a remote source file to scratch: resumed where it was cut, checked before it counts."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from streaming_ext.base.errors import ScratchError, SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store.digests import Digest
from streaming_ext.text.formats import format_of
from streaming_ext.text.sources.ranges import (
    SMALLEST_FILE,
    fetch_ranges,
    forget_ranges,
    worth_fetching,
)
from streaming_ext.text.sources.source_bytes import Reader, open_reader
from streaming_ext.text.sources.source_file import SourceFile

_UNCHECKED = ".unchecked"  # beside a file that came whole by its size alone


class DamagedSourceError(SourceError):
    """The bytes that came are not those that were listed, or that the server tells of."""


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
    whole: bool = False,
) -> tuple[Path, int]:
    """Bring a file to `folder`; returns its path there, and how many bytes were fetched for it.

    What an earlier attempt brought is kept. A file that the Hub's local cache holds is used there.

    Args:
        report: called with the bytes that are here.
        options: all that will be read of it; the rest may be left out where that saves much.
        whole: whether nothing may be left out.

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
    if target.is_file() and target.stat().st_size == source.size:
        return target, 0
    reader = open_reader(source)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return _fetch_checked(source, reader, target, report, options, whole=whole)
        except DamagedSourceError:  # once more: it may have changed on the way
            return _fetch_checked(source, reader, target, report, options, whole=whole)
    except OSError as error:
        raise ScratchError(f"Cannot write to scratch {folder}: {error.strerror}.") from error


def _fetch_checked(
    source: SourceFile,
    reader: Reader,
    target: Path,
    report: Callable[[int], None],
    options: ReadOptions | None,
    *,
    whole: bool,
) -> tuple[Path, int]:
    """Bring a file to `target`, or what is needed of it beside that, and compare what came.

    Raises:
        DamagedSourceError: it is another one.
    """
    partial = target.with_suffix(".partial")
    if options is None or whole or source.size < SMALLEST_FILE or partial.exists():
        needed = None
    else:
        needed = _fetch_needed(source, reader, target.parent, options)
    if needed is not None:
        partial, target, fetched = needed
    else:
        fetched = _fetch_whole(source, reader, partial, report)
    reader.check()
    try:
        checked = needed is None and check_content(source, partial, reader.digest)
    except DamagedSourceError:
        forget_ranges(partial)
        partial.unlink()  # or it would be taken up again for ever
        raise
    if not checked:
        note_unchecked(target)
    forget_ranges(partial)  # first: they must not outlive it
    partial.replace(target)
    return target, fetched


def _fetch_whole(
    source: SourceFile, reader: Reader, partial: Path, report: Callable[[int], None]
) -> int:
    """Bring what is missing of a file; returns how many bytes came."""
    fetched = 0
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
    return fetched


def _fetch_needed(
    source: SourceFile, reader: Reader, folder: Path, options: ReadOptions
) -> tuple[Path, Path, int] | None:
    """Fetch what is needed of a file, where that is worth it.

    Returns:
        Where it is, what to call it when it counts, and how many bytes came; or None.
    """
    file = CountedBytes(source.url, source.size, reader)
    look = format_of(source.url, options).look(file, options)
    ranges = worth_fetching(source, None if look is None else look.needed)
    if ranges is None:
        return None
    told = "\n".join((*options.columns, *options.compared))
    digest = hashlib.sha256(told.encode()).hexdigest()[:8]
    target = folder / f"{local_name(source).partition('.')[0]}-{digest}.source"
    partial = target.with_suffix(".partial")
    fetched = fetch_ranges(reader, ranges, source.size, partial)
    return partial, target, fetched + file.fetched


class CountedBytes:
    """A remote file that counts the bytes that came."""

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
    offered: Callable[[], Digest | None] = lambda: None,
) -> bool:
    """Compare a fetched file with its listing, or with what its store offers.

    Args:
        source: as it was listed, with its size and perhaps a hash.
        path: where its bytes lie.
        offered: asks the store for a hash, where the listing has none.

    Returns:
        Whether there was anything to compare with, beside the size.

    Raises:
        DamagedSourceError: it is another one.
    """
    size = path.stat().st_size
    if size != source.size:
        raise DamagedSourceError(f"{source.url}: {size} bytes came, {source.size} were listed.")
    kind, _, listed = (source.version or "").partition(":")
    expected = Digest(kind=kind, value=listed) if kind in {"sha256", "git"} else offered()
    if expected is None:
        return False
    came = expected.of(path)
    if came != expected.value:
        raise DamagedSourceError(
            f"{source.url}: the content that came has the {replace(expected, value=came)}, its "
            f"server says {expected.value}; it changed on the way or where it lies. Run again."
        )
    return True


def note_unchecked(path: Path) -> None:
    """Leave word beside a file on scratch that nothing was there to check its bytes by."""
    path.with_suffix(_UNCHECKED).touch()


def came_unchecked(path: Path) -> bool:
    """Whether such word lies beside a file."""
    return path.with_suffix(_UNCHECKED).exists()


def remove_fetched(path: Path) -> None:
    """Remove a file from scratch, and what lies beside it."""
    path.unlink(missing_ok=True)
    path.with_suffix(_UNCHECKED).unlink(missing_ok=True)
