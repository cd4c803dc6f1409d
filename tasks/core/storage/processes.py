"""A process told apart from all others, on this machine and elsewhere, that are or were."""

import socket
import uuid
from pathlib import Path


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
