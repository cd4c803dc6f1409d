"""Source files on a disk: patterns to paths, and what pins each file's content."""

import glob
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import xxhash

from streaming_ext.dataset.layout import SCRATCH_MARK
from streaming_ext.dataset.record import LOCAL_VERSION, SourceIdentity
from streaming_ext.errors import SourceError, UsageError
from streaming_ext.storage.local_paths import local_path
from streaming_ext.text.documents.local_bytes import local_bytes
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import Span
from streaming_ext.text.readers.formats import format_of, has_known_suffix, known_suffixes
from streaming_ext.text.sources.patterns import (
    Takes,
    alternatives,
    folder_of,
    is_pattern,
    require_each,
)
from streaming_ext.text.sources.source_file import SourceFile

_READ_BYTES = 2**18  # stays in the cache of a core


def match_local(pattern: str, takes: Takes = has_known_suffix) -> list[SourceFile]:
    """The files that a path or pattern names.

    Raises:
        UsageError: one of them cannot be looked at, or is no file that can be read twice; or the
            pattern is empty.
    """
    if not pattern:
        raise UsageError("A source is empty. Is a variable of the shell not set?")
    return [_listed(_plain(path)) for path in _match(pattern, takes)]


def _plain(path: Path) -> Path:
    """A path without `..`, where that leads to the same file: a link may stand before it."""
    if ".." not in path.parts:
        return path
    plain = Path(os.path.normpath(path))
    return plain if plain.exists() and plain.samefile(path) else path


def _listed(path: Path) -> SourceFile:
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise UsageError(
            f"{path}: is a pipe, socket or device. A source is read more than once: write it to a "
            "file."
        )
    return SourceFile(url=str(path), size=state.st_size, modified=state.st_mtime_ns)


def _match(pattern: str, takes: Takes) -> list[Path]:
    try:
        plain = local_path(pattern).absolute()
        if plain.is_file():  # also a file whose name looks like a pattern
            return [plain]
        if plain.is_dir():
            return _source_files_in(plain, takes)
        if plain.exists():
            return [plain]
        if not is_pattern(pattern):
            return []
        return _expand(pattern, takes)
    # a dangling link, no permission, a zero byte
    except (OSError, ValueError) as error:
        raise UsageError(f"{pattern}: {error}.") from error


def _expand(pattern: str, takes: Takes) -> list[Path]:
    found, missing = list[Path](), list[str]()
    for one in alternatives(str(local_path(pattern))):
        matches = list(_glob(one, takes))
        found += matches
        if not matches:
            missing.append(one)
    if found:
        require_each(pattern, missing)
    return found


def _glob(pattern: str, takes: Takes) -> Iterator[Path]:
    here = Path.cwd()  # never part of the pattern: its name may hold brackets
    fixed = here / folder_of(pattern)
    in_progress = cache(lambda folder: _is_in_progress(folder, fixed))
    for name in sorted(glob.glob(pattern, root_dir=here, recursive=True)):  # noqa: PTH207
        path = here / name
        is_folder = path.is_dir()
        if in_progress(path if is_folder else path.parent):
            continue
        if is_folder:
            yield from _source_files_in(path, takes)
        else:
            path.stat()  # a link that leads nowhere is an error, not a file less
            yield path


def _is_in_progress(folder: Path, named: Path) -> bool:
    """Whether a folder is of work in progress, or in one, and was not named as one to look into."""
    while folder not in {named, folder.parent}:
        if (folder / SCRATCH_MARK).exists():
            return True
        folder = folder.parent
    return False


def _source_files_in(folder: Path, takes: Takes) -> list[Path]:
    """The files below a folder that are sources, links followed, hidden ones left out."""
    found, seen = [], set()

    def refuse(error: OSError) -> None:
        raise error

    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add(real)
        if SCRATCH_MARK in names and place != str(folder):  # work in progress
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if takes(name) and not name.startswith("."):
                file = Path(place, name)
                file.stat()
                found.append(file)
    return found


def why_nothing(pattern: str) -> str:
    """Why a path or pattern names no file."""
    if local_path(pattern.removeprefix("file://")).is_dir():
        return f"no {known_suffixes()} file in this folder."
    if is_pattern(pattern):
        return "no file matches this pattern. (Quoted, so that the shell leaves it alone?)"
    return "no such file or folder."


@contextmanager
def kept_as_listed(source: SourceFile, path: Path, *, changed: SourceError) -> Iterator[Path]:
    """A file of this machine, of which what is read until the block ends is as it was listed.

    Raises:
        SourceError: it is gone; or `changed`, before or behind the block.
    """

    def require() -> None:
        try:
            state = path.stat()
        except OSError as error:
            raise SourceError(
                f"{source.url}: gone since it was listed ({error.strerror})."
            ) from error
        if (state.st_size, state.st_mtime_ns) != (source.size, source.modified):
            raise changed

    require()
    yield path
    require()


def hash_file(path: Path) -> str:
    """XXH3-128 of a file's content, as hex.

    Raises:
        SourceError: the file cannot be read.
    """
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_READ_BYTES))
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}.") from error
    return digest.hexdigest()


def _hash_piece(source: SourceFile, local: Path, span: Span, options: ReadOptions) -> str:
    """XXH3-128 of all that reading a piece of a file takes, as hex."""
    digest = xxhash.xxh3_128()
    with local_bytes(local, name=source.url) as file:
        for start, end in format_of(source.url, options).needed(file, options, span):
            for at in range(start, end, _READ_BYTES):
                digest.update(file.read(at, min(at + _READ_BYTES, end)))
    return digest.hexdigest()


def identify(
    source: SourceFile,
    local: Path,
    *,
    span: Span | None = None,
    options: ReadOptions | None = None,
) -> SourceIdentity:
    """Pin the bytes of a source file that lies at `local`, or of a piece of it.

    Args:
        source: the file as it was listed.
        local: where its bytes lie.
        span: of the piece; all of the file unless given.
        options: which text is read of a piece.

    Raises:
        SourceError: it cannot be read, or its size is not the listed one.
    """
    try:
        size = local.stat().st_size
    except OSError as error:
        raise SourceError(f"{source.url}: cannot be read: {error.strerror}.") from error
    if size != source.size:
        raise SourceError(
            f"{source.url}: {size} bytes, but {source.size} when the run began. "
            "It is being written to; run again when it is whole."
        )
    if span is None or options is None:
        digest = hash_file(local)
    else:
        digest = _hash_piece(source, local, span, options)
    reads = format_of(source.url, options)
    further = [hash_file(file) for file in reads.beside(local)]
    if options is not None and (outside := reads.outside(local, options, span)):
        further.append(xxhash.xxh3_128_hexdigest(outside))
    if further:
        all_of_them = "".join([digest, *further])
        digest = xxhash.xxh3_128(all_of_them.encode()).hexdigest()
    return SourceIdentity(url=source.url, size=size, version=f"{LOCAL_VERSION}{digest}")
