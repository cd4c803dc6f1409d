"""The cores of this process, and threads that wait for storage ahead of the use of results."""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """Return the number of cores that this process may use, by default all of the machine."""
    count = os.cpu_count() or 1
    return min(count, len(os.sched_getaffinity(0))) if sys.platform == "linux" else count


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
