"""What a worker keeps from one job to the next."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from tasks.core.memories import Memories
from tasks.core.storage import Storage, open_storage

T = TypeVar("T")


class Kept:
    """What each job would open or read anew otherwise.

    Attributes:
        memories: that shards are put together in, or read into; of one job at a time.
        storage: the storage at a URL, with the connections that it keeps.
    """

    def __init__(self) -> None:
        self.memories: Memories = {}
        self.storage: Callable[[str], Storage] = cache(open_storage)
        self._last: dict[Callable[..., Any], tuple[tuple[object, ...], Any]] = {}

    def last(self, make: Callable[..., T], *arguments: object) -> T:
        """The result of `make`, which is called again only for other arguments than the last."""
        before = self._last.get(make)
        if before is None or before[0] != arguments:
            self._last.pop(make, None)  # two of them need not fit in memory
            before = self._last[make] = (arguments, make(*arguments))
        result: T = before[1]
        return result
