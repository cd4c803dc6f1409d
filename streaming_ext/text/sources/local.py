"""Source files on disk: listing by patterns, and a check that a file is still as listed."""

import glob
import os
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from streaming_ext.base.errors import SourceError, UsageError, reason_of
from streaming_ext.store.locations import local_path
from streaming_ext.store.scratch import SCRATCH_MARK
from streaming_ext.text.sources.patterns import Takes, find_each, folder_of
from streaming_ext.text.sources.source_file import SourceFile


def match_local(pattern: str, takes: Takes) -> list[SourceFile]:
    """List the files that a path or pattern names.

    Raises:
        UsageError: a file cannot be opened or read twice, or the pattern is empty.
    """
    if not pattern:
        raise UsageError("A source is empty. Is a variable of the shell not set?")
    try:
        return [_listed(path) for path in _match(pattern, takes)]
    # A link may dangle, a permission be missing, or a name hold a zero byte.
    except (OSError, ValueError) as error:
        raise UsageError(f"{pattern}: {error}.") from error


def _listed(path: Path) -> SourceFile:
    if ".." in path.parts:
        path = path.resolve()  # a link may come before `..`
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise UsageError(
            f"{path}: is a pipe, socket or device. A source is read more than once: write it to a "
            "file."
        )
    return SourceFile(url=str(path), size=state.st_size, modified=state.st_mtime_ns)


def _match(pattern: str, takes: Takes) -> list[Path]:
    plain = local_path(pattern).absolute()
    if plain.is_dir():
        return _source_files_in(plain, takes)
    if plain.exists():  # also a file whose name looks like a pattern
        return [plain]
    return find_each(str(local_path(pattern)), lambda one: _glob(one, takes))


def _glob(pattern: str, takes: Takes) -> Iterator[Path]:
    current = Path.cwd()  # never part of the pattern: its name may hold brackets
    named = current / folder_of(pattern)

    @cache
    def in_progress(folder: Path) -> bool:
        """Return whether a folder holds work in progress, unless the user named it."""
        return folder not in {named, folder.parent} and (
            (folder / SCRATCH_MARK).exists() or in_progress(folder.parent)
        )

    for name in sorted(glob.glob(pattern, root_dir=current, recursive=True)):  # noqa: PTH207
        path = current / name
        if path.is_dir():
            if not in_progress(path):
                yield from _source_files_in(path, takes)
        elif not in_progress(path.parent):
            yield path


def _source_files_in(folder: Path, takes: Takes) -> list[Path]:
    """Find the sources below a folder; links are followed, hidden files are left out."""
    found, seen = [], set()

    def refuse(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(parent)
        is_loop = real in seen  # through a link to a folder above
        seen.add(real)
        if is_loop or (SCRATCH_MARK in names and parent != str(folder)):  # work in progress
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in names if takes(name) and not name.startswith(".")]
    return found


def require_as_listed(source: SourceFile) -> None:
    """Refuse a file of this machine that has changed since it was listed.

    Raises:
        SourceError: the file is gone, or has changed.
    """
    try:
        state = Path(source.url).stat()
    except OSError as error:
        raise SourceError(
            f"{source.url}: gone since it was listed ({reason_of(error)})."
        ) from error
    if (state.st_size, state.st_mtime_ns) != (source.size, source.modified):
        raise SourceError(
            f"{source.url}: changed since it was listed. Put it back, or start anew: a state of "
            "the old file does not fit the new one."
        )
