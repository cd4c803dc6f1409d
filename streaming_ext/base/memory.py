"""A limit on the memory of this process, so that hostile input cannot bring down the host."""

import os
import re
import resource
from pathlib import Path

from pydantic import ByteSize, TypeAdapter, ValidationError

from streaming_ext.base.errors import UsageError

VARIABLE = "SHARDMILL_WORKER_MEMORY"
_DEFAULT = "4GiB"
_LEAST = 64 * 2**20
_STATUS = Path("/proc/self/status")


def memory_limit() -> int:
    """Return the bytes that a worker may take beyond those at its start; 0 for no limit.

    Raises:
        UsageError: the environment variable holds no size.
    """
    text = os.environ.get(VARIABLE) or _DEFAULT
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        size = -1
    if size != 0 and size < _LEAST:
        raise UsageError(f"{VARIABLE} is {text!r}, expected a size of 64MiB or more, or 0 for any.")
    return size


def within_memory(size: int) -> int:
    """Return `size` in bytes, but at most a quarter of what a worker may take."""
    limit = memory_limit()
    return min(size, limit // 4) if limit else size


def limit_memory() -> None:
    """Make allocations beyond the limit fail; only Linux tells private from mapped memory.

    Arrow and Python then raise `MemoryError`. Another library may end the process, which the
    supervisor of the process notices.
    """
    limit = memory_limit()
    if not limit or not _STATUS.exists():
        return
    match = re.search(r"^VmData:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    if match is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(match[1]) * 1024 + limit
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
