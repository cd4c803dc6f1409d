"""Tokens by their offsets in the streams, copied from mapped shards one batch at a time.

The streams of all datasets are laid end to end in one space of token numbers.
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from streaming_ext.base.arrays import Ints, Tokens, ranges
from streaming_ext.base.errors import UsageError
from streaming_ext.reading.boundaries import DocumentEnds, Ends
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.shards import OpenShards

FILLING = -1  # in place of a shard: padding after a segment


class Runs(NamedTuple):
    """Runs of tokens from which rows are copied, each within one shard, row by row.

    Attributes:
        firsts: the first run of each row, then the number of runs: (rows + 1,).
        shards: the shard of each run, or `FILLING`: (runs,).
        begins, ends: the range of each run in its shard's file, in bytes: (runs,).
    """

    firsts: Ints
    shards: Ints
    begins: Ints
    ends: Ints

    def of(self, rows: slice) -> slice:
        """Return the slice of the runs of some rows."""
        return slice(self.firsts[rows.start], self.firsts[rows.stop])


def by_value(values: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each distinct value, with its offsets: (offsets,); no value may be negative."""
    order = np.argsort(values, kind="stable")
    changes = np.flatnonzero(np.diff(values[order], prepend=-1, append=-1)).tolist()
    for begin, end in pairwise(changes):
        yield int(values[order[begin]]), order[begin:end]


class TokenReader:
    """A reader of rows of tokens from the shards of one or more streams.

    Attributes:
        shards: the open shards.
        shard_starts: the first token of each shard, then the end: (shards + 1,).
        stream_starts: the first token of each stream, then the end: (streams + 1,).
        headers: bytes of each shard's file before its first token: (shards,).
        hold_limit: bytes of shards that are held at once, unless one is larger; None for no limit.
        ahead_limit: bytes of shards that are opened ahead of their use; None for no limit.
        patience: seconds to wait for a row before reading fails.
    """

    def __init__(self, caches: Sequence[ShardCache], *, eot_id: int | None = None) -> None:
        """Lay out the token space without opening a shard.

        Args:
            caches: the caches of the streams.
            eot_id: see `find_ends`.

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
        self.shard_starts: Ints = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        self.stream_starts: Ints = np.concatenate([[0], np.cumsum([c.sum() for c in counts])])
        self.raw_sizes: Ints = np.concatenate([index.raw_sizes for index in indexes])
        headers: Ints = np.concatenate([index.headers for index in indexes])
        # The offset that token 0 of all streams would have in each shard's file: (shards,)
        self.headers = headers
        self._origins: Ints = headers - self.shard_starts[:-1] * self.dtype.itemsize
        limits = [cache.limit or 0 for cache in set(caches)]
        limited = any(cache.is_limited for cache in caches)
        self.hold_limit = sum(limits) // 4 if limited else None
        self.ahead_limit = sum(limits) // 2 or None
        # Fetching a shard may take this long, with the retries of all processes.
        self.patience = 6 * caches[0].source.timeout + 60
        self._eot = eot_id
        self._start()

    def find_ends(self, eot_id: int) -> None:
        """Find the end-of-text ids of each shard when it is opened; call this before any is."""
        self._eot = eot_id
        self._start()

    def start_process(self) -> None:
        """Reset the state that was inherited through a fork."""
        if os.getpid() != self._process:
            self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._ends = None if self._eot is None else DocumentEnds(self.num_shards, self._eot)
        self.shards = OpenShards(self.caches, self._opened)

    def _opened(self, shard: int, view: memoryview) -> None:
        if self._ends is not None:
            self._ends.add(shard, self._tokens(shard, view))

    def ends(self, shards: Ints, begins: Ints, sizes: Ints) -> Ends:
        """Return the ends of documents in some runs; see `DocumentEnds.in_runs`."""
        assert self._ends is not None  # noqa: S101  (the caller has called `find_ends`)
        for shard in self._ends.unknown(shards):
            self.shards.views([shard])  # opening a shard finds its ends
        return self._ends.in_runs(shards, begins, sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make a reader in another process, which maps the shards itself."""
        return partial(TokenReader, eot_id=self._eot), (self.caches,)

    @property
    def num_shards(self) -> int:
        """The number of shards of all streams."""
        return len(self.raw_sizes)

    def streams_of(self, tokens: Ints) -> tuple[Ints, Ints]:
        """Return the stream of each token, and the first token of that stream: (tokens,) each."""
        streams = np.searchsorted(self.stream_starts, tokens, side="right") - 1
        return streams, self.stream_starts[streams]

    def shards_of(self, tokens: Ints) -> Ints:
        """Return the shard of each token: (tokens,)."""
        return np.searchsorted(self.shard_starts, tokens, side="right") - 1

    def runs(self, starts: Ints, lengths: Ints | int, firsts: Ints) -> Runs:
        """Cut segments of rows at the borders of shards.

        Args:
            starts: the first token of each segment: (segments,).
            lengths: the tokens of each segment, or one number for all.
            firsts: the first segment of each row, then the number of segments: (rows + 1,).
        """
        stops = starts + lengths
        shards = self.shards_of(starts)
        counts = self.shards_of(stops - 1) - shards + 1
        if (counts > 1).any():
            ends = np.append(0, np.cumsum(counts))
            segment = np.repeat(np.arange(len(starts)), counts)
            shards = ranges(shards, counts)
            starts = np.maximum(starts[segment], self.shard_starts[shards])
            stops = np.minimum(stops[segment], self.shard_starts[shards + 1])
            firsts = ends[firsts]
        origins, size = self._origins[shards], self.dtype.itemsize
        return Runs(
            firsts=firsts,
            shards=shards,
            begins=origins + starts * size,
            ends=origins + stops * size,
        )

    def copy(self, runs: Runs, rows: slice, filling: memoryview | None = None) -> Tokens:
        """Copy the tokens of some rows, end to end: (tokens,).

        Args:
            runs: the runs of the rows.
            rows: the slice of the rows.
            filling: the bytes from which runs of `FILLING` are copied.

        Raises:
            CorruptDatasetError: a shard is missing or damaged, also when fetched once more.
            StorageError: storage or the local disk refuses.
        """
        some = runs.of(rows)
        shards, copied = runs.shards[some].tolist(), bytearray()
        begins, ends = runs.begins[some].tolist(), runs.ends[some].tolist()
        for own in self._held_together(shards):
            views = self.shards.views(set(shards[own]) - {FILLING})
            if filling is not None:
                views[FILLING] = filling
            offsets = zip(shards[own], begins[own], ends[own], strict=True)
            joined = bytearray().join([views[shard][begin:end] for shard, begin, end in offsets])
            copied = copied + joined if copied else joined
            del views  # before others are opened
        tokens: Tokens = np.frombuffer(copied, self.dtype)
        return tokens

    def _held_together(self, shards: Sequence[int]) -> Iterator[slice]:
        """Yield runs to copy together: they touch no more shards than may be open and held.

        If two of the shards 3 3 5 7 5 may be open: the runs of 3 3 5, then the runs of 7 5.
        """
        limit = self.hold_limit
        first, held, size = 0, set[int](), 0
        if limit is not None or len(set(shards)) > self.shards.most:
            for number, shard in enumerate(shards):
                if shard in held or shard == FILLING:
                    continue
                size += int(self.raw_sizes[shard])
                if held and (len(held) == self.shards.most or (limit is not None and size > limit)):
                    yield slice(first, number)
                    first, held, size = number, set(), int(self.raw_sizes[shard])
                held.add(shard)
        yield slice(first, len(shards))

    def single(self, offsets: Ints) -> Ints:
        """Return single tokens by their offsets: (offsets,). Hold one shard at a time."""
        found = np.empty(len(offsets), np.int64)
        for shard, own in by_value(self.shards_of(offsets)):
            tokens = self._tokens(shard, self.shards.views([shard])[shard])
            found[own] = tokens[offsets[own] - self.shard_starts[shard]]
        return found

    def _tokens(self, shard: int, view: memoryview) -> Tokens:
        """View the tokens of a shard: (tokens,)."""
        tokens: Tokens = np.frombuffer(view, self.dtype, offset=self.headers[shard])
        return tokens

    def after(self, offsets: Ints, shards: Ints) -> Ints:
        """Return the tokens at some offsets, -1 for those outside their shards: (offsets,) each."""
        after = np.full(len(offsets), -1)
        inside = offsets < self.shard_starts[shards + 1]
        after[inside] = self.single(offsets[inside])
        return after
