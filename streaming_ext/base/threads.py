"""The cores of this process, and threads that wait for storage ahead of the use of results."""

import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from streaming_ext.base.arrays import ceil_div

Item = TypeVar("Item")
Result = TypeVar("Result")
_OWN_GROUP: Final = Path("/proc/self/cgroup")  # names the control group of this process
_GROUPS: Final = Path("/sys/fs/cgroup")  # all control groups that it sees, of version 2


def cores() -> int:
    """Return the number of cores that this process may use, by default all of the machine."""
    count = os.cpu_count() or 1
    if sys.platform != "linux":
        return count
    return min(count, len(os.sched_getaffinity(0)), *_quotas())


def _quotas() -> Iterator[int]:
    """Yield the cores whose time a container, a service and those around it may use: cgroups(7)."""
    own = _OWN_GROUP.read_text() if _OWN_GROUP.exists() else ""
    for name in re.findall("^0::/(.*)", own, re.MULTILINE):
        for group in (Path(name), *Path(name).parents):
            if (limit := _GROUPS / group / "cpu.max").exists():
                quota, period = limit.read_text().split()
                if quota != "max":
                    yield ceil_div(int(quota), int(period))


def mapped_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int = 8
) -> Iterator[Result]:
    """Yield the result of a function for each item, in order, with `threads` items in progress."""
    items = iter(items)
    with ThreadPoolExecutor(threads, thread_name_prefix="shardmill-ahead") as pool:
        waiting = deque(pool.submit(function, item) for item in islice(items, threads))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(function, item) for item in islice(items, 1))
            yield result
