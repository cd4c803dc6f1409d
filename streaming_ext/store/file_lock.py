"""A lock file that one thread on a machine holds at a time."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from streaming_ext.base.errors import HeldError, StorageError, reason_of

_PAUSE: Final = 0.01  # seconds between two attempts to take a lock


@contextlib.contextmanager
def alone(lock: Path, *, patience: float, what: str) -> Iterator[None]:
    """Hold a lock file against all other threads and processes.

    The kernel releases the lock of a process that was killed, so nothing has to be cleaned up.

    Args:
        lock: the file; made if it is missing.
        patience: seconds to wait for another holder; a negative number waits for ever.
        what: name of the guarded thing, for messages.

    Raises:
        HeldError: another thread or process held the lock for `patience` seconds.
        StorageError: the file cannot be made or locked.
    """
    held = FileLock(lock, patience, 0o666)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        held.acquire(poll_interval=_PAUSE)
    except Timeout as error:
        raise HeldError(
            f"Another process holds {what} for over {patience:g} s. Is it stopped?"
        ) from error
    except OSError as error:
        raise StorageError(
            f"The cache {lock.parent} cannot be locked: {reason_of(error)}. Give local= a folder "
            "on a local disk that this user may write, and name a published dataset with remote=."
        ) from error
    try:
        yield
    finally:
        held.release()
