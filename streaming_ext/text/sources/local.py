"""Source files on a disk: from patterns to paths, and whether a file is still as listed."""

import glob
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.store.locations import local_path
from streaming_ext.store.scratch import SCRATCH_MARK
from streaming_ext.text.sources.patterns import (
    Takes,
    alternatives,
    folder_of,
    is_pattern,
    require_each,
)
from streaming_ext.text.sources.source_file import SourceFile


def match_local(pattern: str, takes: Takes) -> list[SourceFile]:
    """The files that a path or pattern names.

    Raises:
        UsageError: a file cannot be opened or read twice, or the pattern is empty.
    """
    if not pattern:
        raise UsageError("A source is empty. Is a variable of the shell not set?")
    return [_listed(_plain(path)) for path in _match(pattern, takes)]


def _plain(path: Path) -> Path:
    """A path without `..`, if it leads to the same file: a link may come before it."""
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
    current = Path.cwd()  # never part of the pattern: its name may hold brackets
    fixed = current / folder_of(pattern)
    in_progress = cache(lambda folder: _is_in_progress(folder, fixed))
    for name in sorted(glob.glob(pattern, root_dir=current, recursive=True)):  # noqa: PTH207
        path = current / name
        is_folder = path.is_dir()
        if in_progress(path if is_folder else path.parent):
            continue
        if is_folder:
            yield from _source_files_in(path, takes)
        else:
            path.stat()  # a dangling link is an error, not one file fewer
            yield path


def _is_in_progress(folder: Path, named: Path) -> bool:
    """Whether a folder holds work in progress, unless the user named it."""
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

    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add(real)
        if SCRATCH_MARK in names and parent != str(folder):  # work in progress
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if takes(name) and not name.startswith("."):
                file = Path(parent, name)
                file.stat()
                found.append(file)
    return found


@contextmanager
def kept_as_listed(source: SourceFile, path: Path, *, changed: SourceError) -> Iterator[Path]:
    """A file of this machine that stays as it was listed until the block ends.

    Raises:
        SourceError: it is gone; or `changed`, before or after the block.
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
