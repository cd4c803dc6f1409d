"""A file comes to lie under its name on a disk whole, or not at all."""

import errno
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from streaming_ext.errors import StorageError

INCOMING = ".incoming"  # files on their way; a folder of its own, so that leftovers are found
# How file systems, and two of them, say that a file cannot have a second name.
NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS}


def place(
    root: Path,
    target: Path,
    make: Callable[[Path], object],
    synced_as: int = os.O_RDWR,
    *,
    lasting: bool = True,
) -> None:
    """Make a file among those on their way, and rename it to its place, over an older one.

    Args:
        root: the folder of the dataset; its folder of files on their way is there.
        target: the file's place below it; folders between are made.
        make: makes the file at the path that it is given.
        synced_as: the flags by which it is opened to be flushed to disk.
        lasting: flush the file and its folder to disk, to last even if the machine loses power.

    Raises:
        StorageError: the disk is full, the folder was removed or may not be written to.
    """
    incoming = root / INCOMING / uuid.uuid4().hex
    try:
        make(incoming)
        if lasting:
            _sync(incoming, synced_as)
        _make_folders(target.parent, below=root)
        incoming.replace(target)
        incoming.unlink(missing_ok=True)  # stays where it was the same file already
        if lasting:
            _sync(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        incoming.unlink(missing_ok=True)
        path = target.relative_to(root)
        raise StorageError(f"Cannot write {path} to {root}: {reason(error)}.") from error


def link_or_copy(file: Path, to: Path) -> None:
    """Give a file a second name, or copy it where the file system cannot do that.

    Raises:
        OSError: neither is possible.
    """
    try:
        to.hardlink_to(file)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        shutil.copyfile(file, to)


def reason(error: OSError) -> str:
    """What the system says, as a part of a sentence."""
    return (error.strerror or str(error)).lower()


def _make_folders(folder: Path, *, below: Path) -> None:
    # Never the root itself: where that was removed half way, writing must fail.
    if folder != below:
        _make_folders(folder.parent, below=below)
        folder.mkdir(exist_ok=True)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
