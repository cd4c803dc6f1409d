"""The shards that are open: fetched, verified and mapped; held while a batch is made of them.

A shard is unmapped by whoever holds the lock of its key, and only where nobody holds the shard: so
neither a thread that makes room nor one that reads ahead can pull it from under a batch.
"""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from streaming_ext.base.arrays import Ints
from streaming_ext.errors import CorruptDatasetError
from streaming_ext.shards.arena import Arena
from streaming_ext.shards.cache import ShardCache
from streaming_ext.shards.file_arena import FileArena, no_more_files, open_files_for
from streaming_ext.shards.single_flight import SingleFlight

Bytes = npt.NDArray[np.uint8]
_VANISHED: Final = "it vanishes from the cache again and again"
_ONE: Final = np.int32(1)  # of the type of the counts: any other is added ten times as slowly
_ATTEMPTS: Final = 20  # where a cache is so small that processes take each other's files away


class ShardWatcher(Protocol):
    """What keeps something of each open shard."""

    def opened(self, shard: int, raw: Bytes) -> None:
        """A shard will be ready; these are the bytes behind its header."""

    def closed(self, shard: int) -> None:
        """A shard is not ready any more."""

    def surplus(self, shards: int) -> int:
        """How many of so many open shards must be closed."""


class MappedShards:
    """The shards of all streams, numbered one stream after another, in one range of addresses.

    Attributes:
        ready: which of them are open: (shards,). Only those that are held stay so.
        limited: whether a cache has a limit, so that files are evicted.
    """

    def __init__(
        self,
        caches: Sequence[ShardCache],
        *,
        most: int,
        watcher: ShardWatcher | None,
        maps: bool = True,
    ) -> None:
        """Reserve addresses; nothing is opened.

        Args:
            caches: of the streams.
            most: shards that may be open, held ones aside.
            watcher: told of what is opened and closed.
            maps: whether files are mapped; else they are read by position.
        """
        self._watcher = watcher
        counts = [len(cache.index.samples) for cache in caches]
        # First shard of each stream, then the end: (streams + 1,)
        firsts: Ints = np.concatenate([[0], np.cumsum(counts)])
        self._numbers = _Numbers(tuple(caches), firsts)
        self.raw_sizes: Ints = np.concatenate([cache.index.raw_sizes for cache in caches])
        self.most = most if maps else open_files_for(self, min(most, len(self.raw_sizes)))
        self.limited = any(cache.is_limited for cache in caches)
        # Else no shard is ever closed, and none needs to be held: a third of a plain batch's time.
        self._closes = self.limited or watcher is not None or len(self.raw_sizes) > self.most
        self._guard = threading.Lock()
        self._opening = SingleFlight()
        self.ready = np.zeros(len(self.raw_sizes), bool)
        self._holders = np.zeros(len(self.raw_sizes), np.int32)
        self._order: dict[int, None] = {}  # of their opening
        self.arena = Arena(self.raw_sizes) if maps else FileArena(self.raw_sizes)
        # What dies with open shards must not keep them in the cache.
        weakref.finalize(self, _unuse, os.getpid(), self._order, self._numbers).atexit = False
        for number, cache in enumerate(caches):
            cache.forget_process()
            cache.asks_to_close(_closer(self, int(firsts[number])))

    @contextlib.contextmanager
    def held(self, shards: Ints) -> Iterator[None]:
        """Have shards open until the block ends.

        Raises:
            CorruptDatasetError: one is missing or damaged, also when fetched once more.
            StorageError: storage or the local disk refuses.
        """
        if not self._closes:
            self._open_missing(shards)
            yield
            return
        with self._guard:
            np.add.at(self._holders, shards, _ONE)
        try:
            # What is held may have been opened ahead of it: then there is a surplus all the same.
            if self._open_missing(shards) or len(self._order) > self.most:
                self._close_surplus()
            yield
        finally:
            with self._guard:
                np.subtract.at(self._holders, shards, _ONE)

    def _open_missing(self, shards: Ints) -> bool:
        """Open those that are not; returns whether there were any."""
        missing = shards[~self.ready[shards]]
        for shard in np.unique(missing).tolist() if missing.size else ():
            self.open(shard)
        return bool(missing.size)

    def open(self, shard: int) -> None:
        """Have one shard open now; any thread may ask. What is not held may be closed again."""
        cache, number = self._numbers.cache_of(shard)
        self._opening.run(
            shard,
            lambda: self._open(shard, cache, number),
            done=lambda: bool(self.ready[shard]),
            patience=3 * cache.source.timeout + 20,
            what=f"Shard {cache.label(number)}",
        )

    def close(self, shard: int) -> bool:
        """Unmap a shard if nobody holds it or is about to open it; returns whether it is closed."""
        if not self._closes:
            return False
        with self._opening.at_once(shard) as alone:
            if not alone:
                return False
            with self._guard:
                if self._holders[shard]:
                    return False
                if not self.ready[shard]:
                    return True
                self.ready[shard] = False
                del self._order[shard]
            self.arena.clear(shard)
            if self._watcher is not None:
                self._watcher.closed(shard)
            cache, number = self._numbers.cache_of(shard)
            cache.unuse(number)
            return True

    def _open(self, shard: int, cache: ShardCache, number: int) -> None:
        if self.limited:
            self._close_evicted()
        cache.use(number)  # before it is looked for: from now on no other process evicts it
        cause, damaged = "not opened", 0
        try:
            for _ in range(_ATTEMPTS):
                cache.fetch(number)
                cause = self._map(shard, cache, number)
                if not cause:
                    return
                damaged += cause != _VANISHED
                if cache.in_place or damaged > 1:
                    break
                cache.discard(number)
        finally:
            if cause:
                cache.unuse(number)
        raise CorruptDatasetError(
            f"Shard {cache.label(number)} is damaged: {cause}. "
            + (
                "Put the right file back, or publish the dataset again."
                if cache.in_place
                else f"A copy fetched anew is too: look at {cache.folder}."
            )
        )

    def _map(self, shard: int, cache: ShardCache, number: int) -> str:
        """Map and verify a shard; returns what is wrong with it, or nothing."""
        index = cache.index
        size = int(index.raw_sizes[number])
        try:
            descriptor = os.open(cache.path(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # removed by somebody else since it was fetched
            return _VANISHED
        except OSError as error:
            if (full := no_more_files(error)) is not None:  # which says nothing of the shard
                raise full from error
            return f"it cannot be opened: {error}"
        try:
            if (found := os.fstat(descriptor).st_size) != size:
                return f"{found} bytes, the index says {size}"
            data = self.arena.place(shard, descriptor, size)
        finally:
            os.close(descriptor)
        header = int(index.headers[number])
        cause = ""
        if index.head_check is not None:
            cause = index.head_check(
                data,
                samples=int(index.samples[number]),
                header=header,
                sample_bytes=index.sample_bytes,
            )
        digest = index.raw_hashes[number]
        if not cause and digest is not None:
            found_hash = xxhash.xxh3_128_hexdigest(data.data)
            if found_hash != digest:
                cause = f"XXH3-128 {found_hash}, the index says {digest}"
        if cause:
            del data
            self.arena.clear(shard)
            return cause
        if self._watcher is not None:
            self._watcher.opened(shard, data[header:])
        cache.touch(number)
        with self._guard:
            self._order[shard] = None
            self.ready[shard] = True
        return ""

    def _close_surplus(self) -> None:
        """Close the oldest shards above the bounds."""
        with self._guard:
            oldest = [shard for shard in self._order if not self._holders[shard]]
            above = max(0, len(self._order) - self.most)
        surplus = 0 if self._watcher is None else self._watcher.surplus(len(oldest))
        for shard in oldest[: max(above, surplus)]:
            self.close(shard)

    def _close_evicted(self) -> None:
        """Close the shards whose files another process evicted: their disk is free only then."""
        with self._guard:
            unheld = [shard for shard in self._order if not self._holders[shard]]
        for shard in unheld:
            cache, number = self._numbers.cache_of(shard)
            if cache.is_limited and not cache.path(number).exists():
                self.close(shard)


class _Numbers:
    """Which cache a shard is of."""

    def __init__(self, caches: tuple[ShardCache, ...], firsts: Ints) -> None:
        self._caches = caches
        self._firsts = firsts

    def cache_of(self, shard: int) -> tuple[ShardCache, int]:
        """The stream's cache and the shard's number in it."""
        stream = int(np.searchsorted(self._firsts, shard, side="right")) - 1
        return self._caches[stream], shard - int(self._firsts[stream])


def _unuse(process: int, shards: dict[int, None], numbers: _Numbers) -> None:
    for shard in shards if process == os.getpid() else ():  # a fork holds none of its parent's
        cache, number = numbers.cache_of(shard)
        cache.unuse(number)


def _closer(shards: MappedShards, first: int) -> Callable[[int], None]:
    """What closes a shard by its number in its stream, as long as `shards` lives."""
    alive = weakref.ref(shards)

    def close(number: int) -> None:
        if (found := alive()) is not None:
            found.close(first + number)

    return close
