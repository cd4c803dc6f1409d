"""Where work in progress goes on this host."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from streaming_ext.errors import ScratchError, StorageError


def user_scratch() -> Path:
    """A folder of the user's own in the temporary folder.

    Raises:
        StorageError: it cannot be made, or is somebody else's.
    """
    folder = Path(tempfile.gettempdir()) / f"shardmill-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise ScratchError(f"Cannot write to scratch {folder}: {error.strerror}.") from error
    if status.st_uid != os.getuid() or not folder.is_dir() or folder.is_symlink():
        raise StorageError(f"{folder} belongs to someone else. Pass --scratch.")
    return folder


@contextmanager
def own_folder(parent: Path, name: str) -> Iterator[Path]:
    """A new folder that is removed when the block ends; several processes may share the parent.

    Where a process was killed its folder stays: the next one to come by removes it. A lock beside
    a folder says whether its process lives.

    Raises:
        StorageError: the disk does not take it.
    """
    folder, lock = parent / name, parent / f"{name}.lock"
    try:
        parent.mkdir(parents=True, exist_ok=True)
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
            f"Cannot write to scratch {folder}, or lock it: {error.strerror}. --scratch takes a "
            "folder on a local disk."
        ) from error


def _remove_leftovers(parent: Path) -> None:
    for lock in parent.glob("*.lock"):
        with suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()
