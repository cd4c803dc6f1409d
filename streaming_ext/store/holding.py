"""The lock that lets one run at a time write to a dataset on a disk, and its holder."""

import fcntl
import os
import platform
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel, ValidationError

from streaming_ext.base.errors import StorageError, UsageError, reason_of
from streaming_ext.store.locations import LOCK_FOLDER

_MOST_NOTED = 4096  # bytes
_LOCK_WAIT_SECONDS = 15.0  # workers of a killed run end within a second or two


def this_machine() -> str:
    """Return an identifier of this boot of this machine and of this container on it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return f"{socket.gethostname()}:{uuid.getnode()}"
    return f"{boot}:{space}"


def started(pid: int) -> str:
    """Return the start of a process, in ticks since boot; empty if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


class Holder(BaseModel, frozen=True):
    """The process that holds a dataset, as the lock names it; unknown by default."""

    machine: str = ""
    host: str = "?"
    pid: int = 0
    started: str = ""

    def __str__(self) -> str:
        host = "".join(c for c in self.host[:80] if c.isprintable())
        return f"process {self.pid or '?'} on {host}"

    @classmethod
    def myself(cls) -> "Holder":
        """Return this process."""
        pid = os.getpid()
        return cls(machine=this_machine(), host=platform.node(), pid=pid, started=started(pid))

    @classmethod
    def noted(cls, content: bytes) -> "Holder":
        """Return the process that the content of a lock names."""
        try:
            return cls.model_validate_json(content)
        except ValidationError:
            return cls()

    def lives(self) -> bool | None:
        """Return whether the process runs; None if it is on another machine, or unknown."""
        if self.machine != this_machine():
            return None
        return bool(self.started) and started(self.pid) == self.started


@contextmanager
def held(root: Path, report: Callable[[str], None]) -> Iterator[int]:
    """Hold the dataset in a folder against other runs; yield the descriptor of the lock.

    A process that inherits the descriptor holds the dataset until it ends. So workers that outlive
    a killed run by a moment never write at the same time as the next run.

    Args:
        root: the folder.
        report: called with a message about the run that holds the lock.

    Raises:
        UsageError: another run is at work in the folder.
        StorageError: the file system has no such locks.
    """
    lock = root / LOCK_FOLDER / ".lock"
    try:
        lock.parent.mkdir(exist_ok=True)
        file = lock.open("a+b", buffering=0)  # on a full disk, closing would fail to flush a buffer
    except OSError as error:
        raise StorageError(f"Cannot write {lock}: {reason_of(error)}.") from error
    with file:
        deadline = time.monotonic() + _LOCK_WAIT_SECONDS
        while not _locked(file, root):
            file.seek(0)
            holder = Holder.noted(file.read(_MOST_NOTED))
            if time.monotonic() > deadline or holder.lives():
                raise UsageError(
                    f"Another run is writing to {root} ({holder}). Wait for it, stop it, or "
                    "use another --output."
                )
            report(f"waiting for another run ({holder}) to let go of {root}")
            time.sleep(0.1)
        with suppress(OSError):  # the disk may be full; the lock holds without the name
            file.truncate(0)
            file.write(Holder.myself().model_dump_json().encode())
        try:
            yield file.fileno()
        finally:
            file.truncate(0)


def _locked(file: BinaryIO, root: Path) -> bool:
    """Take the lock; return False if another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StorageError(
            f"{root} cannot be held against other runs: its file system takes no locks "
            f"(flock: {reason_of(error)}). Mount it with locks (Lustre: -o flock; NFS: version 4), "
            "or use another --output, on a local disk or in an object store."
        ) from error
    return True
