"""The lock by which one run at a time writes to a dataset on a disk."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from streaming_ext.dataset.layout import RUNS_FOLDER
from streaming_ext.errors import StorageError, UsageError
from tasks.core.storage.holder import Holder
from tasks.core.storage.placing import reason

_LOCK_WAIT_SECONDS = 15.0  # workers of a killed run end within a second or two


@contextmanager
def held(root: Path, tell: Callable[[str], None]) -> Iterator[int]:
    """Hold the dataset in a folder against another run; yields a descriptor that holds it too.

    A process that inherits the descriptor keeps the dataset held until it ends, so workers
    that outlive a killed run by a moment never write into the next one.

    Args:
        root: the folder.
        tell: called with whom it waits for.

    Raises:
        UsageError: another run is at work here.
        StorageError: the file system knows no such locks.
    """
    lock = root / RUNS_FOLDER / ".lock"
    try:
        lock.parent.mkdir(exist_ok=True)
        file = lock.open("a+b", buffering=0)  # what is left in a buffer would fail on closing
    except OSError as error:
        raise StorageError(f"Cannot write {lock}: {reason(error)}.") from error
    with file:
        deadline = time.monotonic() + _LOCK_WAIT_SECONDS
        while not _locked(file, root):
            holder = Holder.noted_in(file)
            if time.monotonic() > deadline or holder.lives():
                raise UsageError(
                    f"Another run is writing to {root}{holder}. Wait for it, stop it, or "
                    "use another --output."
                )
            tell(f"waiting for another run{holder} to let go of {root}")
            time.sleep(0.1)
        Holder.myself().note_in(file)
        try:
            yield file.fileno()
        finally:
            file.truncate(0)


def _locked(file: BinaryIO, root: Path) -> bool:
    """Take the lock; False where another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StorageError(
            f"{root} cannot be held against other runs: its file system takes no locks "
            f"(flock: {reason(error)}). Mount it with them (Lustre: -o flock; NFS: version 4, or "
            "its lock service running), or use another --output, on a local disk or in an object "
            "store."
        ) from error
    return True
