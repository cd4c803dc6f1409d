"""Open shards, fetched, verified and mapped; the least recently used ones are closed.

A batch keeps the maps that it reads, even if their shards are closed meanwhile. The disk space of
an evicted file is free when its last map is gone.
"""

import resource
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import (
    CorruptDatasetError,
    ShardmillError,
    StorageError,
    TransientStorageError,
)
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.made_once import NO_MAPS

_MOST: Final = 8192  # maps, of the 65,530 that Linux gives a process
_LEAST: Final = 32
_VANISHED: Final = "it vanishes from the cache again and again"
_ATTEMPTS: Final = 20  # if a cache is so small that processes evict each other's files


def most_open() -> int:
    """Return the number of shards that stay open: a quarter of the limit of open files.

    Python keeps the file of a map open.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(_LEAST, min(_MOST, soft // 4))


class OpenShards:
    """The shards of all streams, numbered one stream after another.

    Attributes:
        most: shards that stay open, besides those that are opened ahead.
        ready: True for open shards: (shards,).
        limited: True if a cache has a limit, so that files are evicted.
    """

    def __init__(
        self,
        caches: Sequence[ShardCache],
        opened: Callable[[int, memoryview], object],
    ) -> None:
        """Start without open shards.

        Args:
            caches: the caches of the streams.
            opened: the function that is called with each shard and its bytes before it is ready.
        """
        self._opened = opened
        counts = [len(cache.index.samples) for cache in caches]
        # First shard of each stream, then the end: (streams + 1,)
        self._firsts: Ints = np.concatenate([[0], np.cumsum(counts)])
        self._caches = tuple(caches)
        self.most = most_open()
        self.limited = any(cache.is_limited for cache in caches)
        self.ready = np.zeros(sum(counts), bool)
        self._verified = np.zeros(sum(counts), bool)
        self._guard = threading.Lock()
        self._opening: dict[int, Future[None]] = {}
        self._views: dict[int, memoryview] = {}  # in the order of their last use
        for cache in caches:
            cache.start_process()

    def _cache_of(self, shard: int) -> tuple[ShardCache, int]:
        """Return the cache of a shard, and the shard's number in the cache."""
        stream = int(np.searchsorted(self._firsts, shard, side="right")) - 1
        return self._caches[stream], shard - int(self._firsts[stream])

    @property
    def num_open(self) -> int:
        """The number of open shards."""
        return len(self._views)

    def views(self, shards: Iterable[int]) -> dict[int, memoryview]:
        """Return the files of some shards as bytes, which stay while they are referenced.

        Raises:
            CorruptDatasetError: a shard is missing or damaged, also when fetched once more.
            StorageError: storage or the local disk refuses.
        """
        views = self._views
        found, missing = {}, []
        with self._guard:
            for shard in shards:
                if (view := views.pop(shard, None)) is None:
                    missing.append(shard)
                else:
                    views[shard] = found[shard] = view
            others = list(views)[: len(views) - len(found)]  # the least recently used first
        excess = len(views) + len(missing) - self.most
        for shard in others[: max(0, excess)]:
            self.close(shard)
        for shard in missing:
            found[shard] = self.open(shard)
        return found

    def open(self, shard: int) -> memoryview:
        """Open one shard now; if several threads call this, one of them opens it.

        If that fails, the waiting threads get the same error; a later call tries again.
        """
        while (view := self._views.get(shard)) is None:
            cache, number = self._cache_of(shard)
            own: Future[None] = Future()
            opening = self._opening.setdefault(shard, own)
            if opening is not own:
                patience = 3 * cache.source.timeout + 20
                try:
                    opening.result(patience)
                except TimeoutError as error:
                    raise TransientStorageError(
                        f"Shard {cache.label(number)} did not come within {patience:g} s."
                    ) from error
                continue
            try:
                if not self.ready[shard]:
                    self._open(shard, cache, number)
            except ShardmillError as error:
                own.set_exception(error)
                raise
            finally:
                del self._opening[shard]
                if not own.done():
                    own.set_result(None)
        return view

    def close(self, shard: int) -> None:
        """Close a shard; its map stays until the last batch that reads it is gone."""
        with self._guard:
            if self._views.pop(shard, None) is not None:
                self.ready[shard] = False

    def _open(self, shard: int, cache: ShardCache, number: int) -> None:
        if self.limited:
            self._close_evicted()
        damaged = 0
        for _ in range(_ATTEMPTS):
            cache.fetch(number, lambda evicted: self.close(shard - number + evicted))
            cause = self._map(shard, cache, number)
            if not cause:
                return
            damaged += cause != _VANISHED
            if cache.in_place or damaged > 1:
                break
            cache.discard(number)
        raise CorruptDatasetError(
            f"Shard {cache.label(number)} is damaged: {cause}. "
            + (
                "Put the right file back, or publish the dataset again."
                if cache.in_place
                else f"A copy fetched anew is too: look at {cache.folder}."
            )
        )

    def _map(self, shard: int, cache: ShardCache, number: int) -> str:
        """Map a shard, and verify it the first time; return its fault, or "" if there is none."""
        index = cache.index
        size = int(index.raw_sizes[number])
        try:
            with cache.open(number) as file:
                data = np.asarray(np.memmap(file, np.uint8, "r"))
        except FileNotFoundError:  # removed by another process since it was fetched
            return _VANISHED
        except ValueError:  # NumPy raises this for an empty file
            return f"0 bytes, the index says {size}"
        except OSError as error:  # the shard itself may be whole
            raise StorageError(
                f"Shard {cache.label(number)} cannot be mapped: {error}. {NO_MAPS}"
            ) from error
        view = data.data
        cause = index.fault_of(number, data, hashed=not self._verified[shard])
        if cause:
            return cause
        self._verified[shard] = True
        self._opened(shard, view)
        with self._guard:
            self._views[shard] = view
            self.ready[shard] = True
        return ""

    def _close_evicted(self) -> None:
        """Close shards whose files another process evicted, which frees their disk space."""
        for shard in list(self._views):
            cache, number = self._cache_of(shard)
            if cache.is_limited and not cache.path(number).exists():
                self.close(shard)
