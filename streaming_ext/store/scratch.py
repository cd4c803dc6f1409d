"""Folders for work in progress on this host."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from streaming_ext.base.errors import ScratchError, StorageError, UsageError, reason_of
from streaming_ext.store.locations import is_utf8, shown_path

SCRATCH_MARK = ".shardmill-scratch"  # a file in folders for work in progress, never in a dataset


def temporary_folder() -> Path:
    """Return the system's folder for temporary files.

    Raises:
        UsageError: the folder's name is not UTF-8.
    """
    folder = tempfile.gettempdir()
    if not is_utf8(folder):
        raise UsageError(
            f"The temporary folder {shown_path(folder)} is not UTF-8: records of a run could not "
            "hold it. Set TMPDIR to another one, or pass --scratch."
        )
    return Path(folder)


@contextmanager
def writing_scratch(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one that names the file or folder.

    Raises:
        ScratchError: the disk is full, or this user may not write to it.
        OSError: the error is about a file elsewhere.
    """
    try:
        yield
    except OSError as error:
        named = Path(error.filename) if isinstance(error.filename, str) else path
        if not (named.is_relative_to(path) or path.is_relative_to(named)):
            raise
        raise ScratchError(f"Cannot write to scratch {path}: {reason_of(error)}.") from error


@contextmanager
def new_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make a new folder for work in progress, which is removed at the end of the block.

    Args:
        parent: the folder around it; the system's folder for temporary files by default.

    Raises:
        ScratchError: the disk is full, or this user may not write to it.
    """
    parent = parent or temporary_folder()
    with (
        writing_scratch(parent),
        tempfile.TemporaryDirectory(prefix="shardmill-", dir=parent) as name,
    ):
        yield Path(name)


def user_scratch() -> Path:
    """Return the user's own folder in the temporary folder; make it if it is missing.

    Raises:
        StorageError: the folder cannot be made, or belongs to someone else.
        UsageError: the temporary folder's name is not UTF-8.
    """
    folder = temporary_folder() / f"shardmill-{os.getuid()}"
    with writing_scratch(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    if status.st_uid != os.getuid() or not folder.is_dir() or folder.is_symlink():
        raise StorageError(f"{folder} belongs to someone else. Pass --scratch.")
    return folder


def take_scratch(folder: Path, *, keep: Collection[Path] = ()) -> None:
    """Make a folder for work in progress, or empty the one that a killed run left.

    The folder's name follows from the output's, so it may exist for another reason. Only a folder
    of this user that was made for such work is emptied, and no link is followed.

    Args:
        folder: the folder to make or to empty.
        keep: folders in it that stay.

    Raises:
        ScratchError: the folder is a link, belongs to another user, holds other files, or is not
            writable.
    """
    with writing_scratch(folder):
        _take(folder)
        folder.chmod(0o700)
        for leftover in folder.iterdir():
            if leftover.is_symlink() or not leftover.is_dir():
                if leftover.name != SCRATCH_MARK:
                    leftover.unlink()
            elif leftover not in keep:
                shutil.rmtree(leftover, ignore_errors=True)


def remove_scratch(folder: Path) -> None:
    """Remove a folder for work in progress, unless it must not be emptied."""
    with suppress(OSError):
        if _may_be_emptied(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _take(folder: Path) -> None:
    """Make a folder, or make sure that an existing one is for work in progress."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _may_be_emptied(folder):
        raise ScratchError(
            f"Scratch {folder} is a link, no folder, another user's, or holds files that no run "
            "left there, so it is left as it is. Move it away, or pass --scratch."
        )
    (folder / SCRATCH_MARK).touch()


def _may_be_emptied(folder: Path) -> bool:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return False
    names = {entry.name for entry in folder.iterdir()}
    return not names or SCRATCH_MARK in names


@contextmanager
def own_folder(parent: Path, name: str) -> Iterator[Path]:
    """Make a folder that is removed at the end of the block; processes may share the parent.

    If a process is killed, the next one removes its folder. A lock beside a folder shows whether
    its process lives.

    Raises:
        StorageError: the parent does not belong to this user, or is not writable.
    """
    folder, lock = parent / name, parent / f"{name}.lock"
    try:
        _take(parent)
        _remove_leftovers(parent)
        with lock.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                lock.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"Cannot write to scratch {folder}, or lock it: {reason_of(error)}. --scratch takes a "
            "folder on a local disk."
        ) from error


def _remove_leftovers(parent: Path) -> None:
    for lock in parent.glob("*.lock"):
        with suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()
