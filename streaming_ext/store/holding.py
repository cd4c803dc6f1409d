"""The lock by which one run at a time writes to a dataset on a disk."""

import fcntl
import json
import os
import platform
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Self

from streaming_ext.base.errors import StorageError, UsageError


def reason(error: OSError) -> str:
    """What the system says, as a part of a sentence."""
    return (error.strerror or str(error)).lower()


def this_machine() -> str:
    """What tells this boot of this machine, and this container on it, from every other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return f"{socket.gethostname()}:{uuid.getnode()}"
    return f"{boot}:{space}"


def started(pid: int) -> str:
    """When a process began, in ticks since boot; empty where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


LOCK_FOLDER = "runs"
_MOST_NOTED = 4096  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The run that holds a dataset, as it noted in the lock; nobody where it has not yet.

    Of a run that was killed, its workers hold the lock for another moment: that is waited for.
    """

    machine: str = ""
    host: str = ""
    pid: int = 0
    started: str = ""

    def __str__(self) -> str:
        return f" (process {self.pid} on {self.host})" if self.pid else ""

    @classmethod
    def myself(cls) -> Self:
        """This process."""
        pid = os.getpid()
        return cls(machine=this_machine(), host=platform.node(), pid=pid, started=started(pid))

    @classmethod
    def noted_in(cls, file: BinaryIO) -> Self:
        """Who noted itself in a lock."""
        with suppress(OSError, ValueError, TypeError):
            file.seek(0)
            return cls(**json.loads(file.read(_MOST_NOTED)))
        return cls()

    def note_in(self, file: BinaryIO) -> None:
        """Note it in the lock, for others to read."""
        with suppress(OSError):  # a full disk: the lock holds without it
            file.truncate(0)
            file.write(json.dumps(asdict(self)).encode())
            file.flush()

    def lives(self) -> bool:
        """Whether it is known to: elsewhere it cannot be told."""
        return (
            self.machine == this_machine()
            and bool(self.started)
            and started(self.pid) == self.started
        )


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
    lock = root / LOCK_FOLDER / ".lock"
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
