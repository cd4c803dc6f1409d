"""Tokens by their place in the stream, gathered from memory-mapped shards a whole batch at a time.

The streams of all datasets are laid end to end in one space of token numbers, their shards in one
arena. A shard is verified by each process on its first use; a damaged copy is fetched once more.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from streaming_ext.batches.ends import DocumentEnds
from streaming_ext.batches.masks import Boundaries, Pieces
from streaming_ext.errors import CorruptDatasetError, UsageError
from streaming_ext.sampler.order import Ints
from streaming_ext.shards.arena import Arena
from streaming_ext.shards.cache import ShardCache
from streaming_ext.shards.single_flight import SingleFlight

Tokens = npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]
MAX_MAPPED = 12_288  # shards; the system allows some 65,000 mappings, and a shard takes up to four
MAX_ENDS = 2**30  # bytes for the places where documents end


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """Where some rows are: all arrays of shape (rows,).

    Attributes:
        starts: first token.
        first: shard of the first token.
        last: shard of the last token.
        addresses: of the first token in the arena, in bytes.
    """

    starts: Ints
    first: Ints
    last: Ints
    addresses: Ints


class TokenReader:
    """Reads rows of tokens from the shards of one or more streams."""

    def __init__(self, caches: Sequence[ShardCache]) -> None:
        """Lay out the token space; no shard is opened yet.

        Raises:
            UsageError: the streams store ids of different types.
        """
        self.caches = tuple(caches)
        indexes = [cache.index for cache in caches]
        dtypes = sorted({index.dtype for index in indexes})
        if len(dtypes) != 1:
            raise UsageError(
                f"The streams store ids as {', '.join(dtypes)}. Streams that are mixed need one "
                "tokenizer, and so one type: prepare them alike."
            )
        self.dtype = np.dtype(dtypes[0]).newbyteorder("<")
        counts = [index.samples * index.sample_tokens for index in indexes]
        # First token of each shard, then the end: (shards + 1,)
        self.shard_starts: Ints = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        # First token of each stream, then the end: (streams + 1,)
        self.stream_starts: Ints = np.concatenate([[0], np.cumsum([c.sum() for c in counts])])
        # First shard of each stream, then the end: (streams + 1,)
        self._stream_shards = np.concatenate([[0], np.cumsum([len(c) for c in counts])])
        self.raw_sizes: Ints = np.concatenate([index.raw_sizes for index in indexes])
        self._headers: Ints = np.concatenate([index.headers for index in indexes])
        self._limited = any(cache.limit is not None and cache.evictable for cache in caches)
        self.ready = np.zeros(len(self.raw_sizes), bool)
        self._eot: int | None = None
        self._start_process()

    def find_ends(self, eot_id: int) -> None:
        """Find the end-of-text ids of each shard when it is opened; before any is."""
        self._eot = eot_id
        self._start_process()

    def _start_process(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._opening = SingleFlight()
        self.ready[:] = False
        self._mapped: dict[int, None] = {}  # in the order of their mapping
        self._arena = Arena(self.raw_sizes)
        self._data = self._arena.offsets + self._headers
        self._ends = None
        if self._eot is not None:
            self._ends = DocumentEnds(np.diff(self.shard_starts), self._eot)
        for cache in self.caches:
            cache.forget_process()

    def __getstate__(self) -> dict[str, object]:
        """What another process needs; mappings and locks are made anew there."""
        own = ("_guard", "_opening", "_arena", "_mapped", "_data", "_ends")
        return {key: value for key, value in self.__dict__.items() if key not in own}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Start without mappings."""
        self.__dict__.update(state)
        self._start_process()

    @property
    def num_shards(self) -> int:
        """Shards of all streams."""
        return len(self.raw_sizes)

    def locate(self, starts: Ints, length: int) -> Located:
        """Find rows of `length` tokens that begin at `starts`: shape (rows,)."""
        first = np.searchsorted(self.shard_starts, starts, side="right") - 1
        ends = starts + (length - 1)
        last = first
        if (ends >= self.shard_starts[first + 1]).any():
            last = np.searchsorted(self.shard_starts, ends, side="right") - 1
        inside = (starts - self.shard_starts[first]) * self.dtype.itemsize
        return Located(starts=starts, first=first, last=last, addresses=self._data[first] + inside)

    def shards_of(self, located: Located, rows: slice) -> Ints:
        """All shards that some rows touch, some of them more than once."""
        if located.last is located.first:
            return located.first[rows]
        return self._pieces_of(located, rows)[1]

    def ensure(self, shards: Ints) -> None:
        """Have shards verified and mapped.

        Raises:
            CorruptDatasetError: one is missing or damaged, also when fetched once more.
            StorageError: storage or the local disk refuses.
        """
        if os.getpid() != self._process:
            self._start_process()
        missing = shards[~self.ready[shards]]
        if missing.size:
            for shard in missing.tolist():
                self.open(shard)
            self._forget_surplus(set(shards.tolist()))

    def open(self, shard: int) -> None:
        """Have one shard verified and mapped; any thread may ask."""
        cache, number = self._cache_of(shard)
        self._opening.run(
            shard,
            lambda: self._open(shard, cache, number),
            done=lambda: bool(self.ready[shard]),
            patience=3 * cache.source.timeout + 20,
            what=f"Shard {cache.label(number)}",
        )

    def gather(self, located: Located, rows: slice, length: int) -> Tokens:
        """Copy rows out of the shards, which `ensure` made ready: (rows, length)."""
        addresses = located.addresses[rows]
        width = length * self.dtype.itemsize
        if located.last is located.first:  # no row crosses the border of a shard
            return self._arena.rows(addresses, width).view(self.dtype)
        whole = located.last[rows] == located.first[rows]
        result: Tokens = np.empty((len(addresses), length), self.dtype)
        result[whole] = self._arena.rows(addresses[whole], width).view(self.dtype)
        starts = located.starts[rows]
        for row in np.flatnonzero(~whole).tolist():  # rare: fewer than there are shards
            result[row] = self._piecewise(int(starts[row]), length)
        return result

    def before(self, located: Located, rows: slice | Ints) -> tuple[Tokens, Flags]:
        """The token before each row, and whether it lies in the same shard: (rows,) each."""
        inside = located.starts[rows] > self.shard_starts[located.first[rows]]
        return self._tokens_at(located.addresses[rows] - self.dtype.itemsize, inside), inside

    def after(self, located: Located, rows: slice, length: int) -> Ints:
        """The token after each row of `length`, -1 where its last token's shard ends: (rows,)."""
        last = located.last[rows]
        ends = located.starts[rows] + length
        address = self._data[last] + (ends - self.shard_starts[last]) * self.dtype.itemsize
        inside = ends < self.shard_starts[last + 1]
        return np.where(inside, self._tokens_at(address, inside), -1)

    def boundaries(
        self, located: Located, rows: slice, length: int, *, steps: int, real: Flags, targets: bool
    ) -> Boundaries:
        """Where documents begin and end in some rows of `steps` steps, whose shards are ready.

        Args:
            located: the rows of a block.
            rows: which of them.
            length: tokens a row.
            steps: how many steps the rows make.
            real: False for rows that only fill up a batch: (rows,).
            targets: whether targets are wanted.
        """
        if self._ends is None:
            raise UsageError("The reader was not told to find the ends of documents.")
        after = self.after(located, rows, length) if targets else None
        return Boundaries.find(self._pieces(located, rows, length, real), self._ends, after,
                               rows=len(real) // steps, length=length)  # fmt: skip

    def _pieces_of(self, located: Located, rows: slice) -> tuple[Ints, Ints]:
        """Row and shard of each piece of some rows: (pieces,) each."""
        first = located.first[rows]
        counts = located.last[rows] - first + 1
        row = np.repeat(np.arange(len(first)), counts)
        place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        return row, first[row] + place

    def _pieces(self, located: Located, rows: slice, length: int, real: Flags) -> Pieces:
        starts, first = located.starts[rows], located.first[rows]
        number = np.arange(len(starts))
        if located.last is located.first:
            starts = starts - self.shard_starts[first]
            every = np.ones(len(starts), bool)
            return Pieces(shards=first, starts=starts, stops=starts + length, rows=number,
                          columns=np.zeros_like(number), empty=~real, opens=every,
                          closes=every)  # fmt: skip
        row, shards = self._pieces_of(located, rows)
        begins = self.shard_starts[shards]
        start = np.maximum(starts[row], begins)
        stop = np.minimum(starts[row] + length, self.shard_starts[shards + 1])
        opens, closes = shards == first[row], shards == located.last[rows][row]
        return Pieces(shards=shards, starts=start - begins, stops=stop - begins, rows=row,
                      columns=start - starts[row], empty=~real[row], opens=opens,
                      closes=closes)  # fmt: skip

    def _tokens_at(self, addresses: Ints, inside: Flags) -> Ints:
        """The tokens at some addresses, any value where not `inside`: (addresses,)."""
        tokens = np.zeros(len(addresses), np.int64)
        width = self.dtype.itemsize
        tokens[inside] = self._arena.rows(addresses[inside], width).view(self.dtype)[:, 0]
        return tokens

    def _piecewise(self, start: int, length: int) -> Tokens:
        """One row that more than one shard holds."""
        pieces = []
        end = start + length
        while start < end:
            shard = int(np.searchsorted(self.shard_starts, start, side="right")) - 1
            count = min(end, int(self.shard_starts[shard + 1])) - start
            inside = (start - int(self.shard_starts[shard])) * self.dtype.itemsize
            address = np.array([self._data[shard] + inside])
            pieces.append(self._arena.rows(address, count * self.dtype.itemsize))
            start += count
        tokens: Tokens = np.concatenate(pieces, axis=1).view(self.dtype)[0]
        return tokens

    def _cache_of(self, shard: int) -> tuple[ShardCache, int]:
        """The stream's cache and the shard's number in it."""
        stream = int(np.searchsorted(self._stream_shards, shard, side="right")) - 1
        return self.caches[stream], shard - int(self._stream_shards[stream])

    def _open(self, shard: int, cache: ShardCache, number: int) -> None:
        cause = ""
        for _ in range(2):
            cache.fetch(number)
            cause = self._map(shard, cache, number)
            if not cause:
                return
            if cache.in_place:
                break
            cache.discard(number)
        raise CorruptDatasetError(
            f"Shard {cache.label(number)} is damaged: {cause}. "
            + ("Put the right file back, or publish the dataset again."
               if cache.in_place else f"A copy fetched anew is too: look at {cache.folder}.")
        )  # fmt: skip

    def _map(self, shard: int, cache: ShardCache, number: int) -> str:
        """Map and verify a shard; returns what is wrong with it, or nothing."""
        index = cache.index
        size = int(index.raw_sizes[number])
        try:
            descriptor = os.open(cache.path(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # evicted by another process since it was fetched
            return "it vanished from the cache"
        except OSError as error:
            return f"it cannot be opened: {error}"
        try:
            if (found := os.fstat(descriptor).st_size) != size:
                return f"{found} bytes, the index says {size}"
            data = self._arena.place(shard, descriptor, size)
        finally:
            os.close(descriptor)
        cause = _header_fault(data, int(index.samples[number]), int(index.headers[number]),
                              index.sample_tokens * self.dtype.itemsize)  # fmt: skip
        digest = index.raw_hashes[number]
        if not cause and digest is not None:
            found_hash = xxhash.xxh3_128_hexdigest(data.data)
            if found_hash != digest:
                cause = f"XXH3-128 {found_hash}, the index says {digest}"
        if cause:
            del data
            self._arena.clear(shard)
            return cause
        if self._ends is not None:
            self._ends.add(shard, data[int(self._headers[shard]) :], self.dtype)
        cache.touch(number)
        with self._guard:
            self._mapped[shard] = None
        self.ready[shard] = True
        return ""

    def _forget_surplus(self, needed: set[int]) -> None:
        """Unmap the oldest shards above the bound, and those that a limited cache evicted."""
        with self._guard:
            surplus = [shard for shard in self._mapped if shard not in needed]
        keep = max(0, MAX_MAPPED - len(needed))
        doomed = surplus[: max(0, len(surplus) - keep)]
        if self._ends is not None and self._ends.bytes > MAX_ENDS:
            doomed = surplus[: max(len(doomed), len(surplus) // 4)]
        if self._limited:
            for shard in surplus[len(doomed) :]:
                cache, number = self._cache_of(shard)
                if cache.evictable and not cache.path(number).exists():
                    doomed.append(shard)
        for shard in doomed:
            self.ready[shard] = False
            with self._guard:
                del self._mapped[shard]
            self._arena.clear(shard)
            if self._ends is not None:
                self._ends.drop(shard)


def _header_fault(data: npt.NDArray[np.uint8], samples: int, header: int, sample_bytes: int) -> str:
    """What is wrong with the head of a raw shard: its count and the place of each sample."""
    count = int(data[:4].view("<u4")[0])
    if count != samples:
        return f"holds {count} samples, the index says {samples}"
    offsets = data[4 : 4 + 4 * (samples + 1)].view("<u4").astype(np.int64)
    if not (offsets == header + np.arange(samples + 1) * sample_bytes).all():
        return "its samples do not lie where ids of one length lie"
    return ""
