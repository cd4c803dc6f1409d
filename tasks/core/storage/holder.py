"""Who holds a dataset on a disk, as it is noted in the lock for others to be told."""

import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import BinaryIO, Self

from tasks.core.storage.processes import started, this_machine

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
