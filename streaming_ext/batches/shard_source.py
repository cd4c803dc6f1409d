"""Token ids in memory-mapped shards, as a source of batches."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np

from streaming_ext.base.arrays import Flags, Ints, Tokens
from streaming_ext.batches.masks import Boundaries
from streaming_ext.batches.prefetch import Prefetcher
from streaming_ext.batches.token_reader import Located, TokenReader
from streaming_ext.batches.token_source import ReadAhead, Spans, TokenRows


class ShardSource:
    """The rows that a `TokenReader` reads; see `TokenSource` for the words."""

    multiple = 1

    def __init__(self, reader: TokenReader, *, cache_limit: int | None) -> None:
        """Take over what the indexes say.

        Args:
            reader: of the shards.
            cache_limit: bytes that all caches together may hold, None for no limit.
        """
        indexes = [cache.index for cache in reader.caches]
        self.reader = reader
        self.dtype = reader.dtype
        self.fingerprints = tuple(index.index_hash for index in indexes)
        self.eot_id = indexes[0].eot_id
        self.shard_count = reader.num_shards
        # What fetching a shard may take, with its retries and those of who is waited for.
        self.patience = 6 * reader.caches[0].source.timeout + 60
        self._prefetch_limit = None if cache_limit is None else cache_limit // 2
        self.hold_limit = cache_limit // 4 if cache_limit is not None and reader.limited else None
        self._prefetchers: weakref.WeakSet[Prefetcher] = weakref.WeakSet()  # alive as they run

    def __getstate__(self) -> dict[str, object]:
        """Threads stay in the process that started them."""
        return {name: value for name, value in self.__dict__.items() if name != "_prefetchers"}

    def __setstate__(self, state: dict[str, object]) -> None:
        """None runs in a new process."""
        self.__dict__.update(state)
        self._prefetchers = weakref.WeakSet()

    def bounds(self, length: int) -> list[Ints]:
        """See `TokenIndex.bounds`."""
        return [cache.index.bounds(length) for cache in self.reader.caches]

    def find_ends(self, eot_id: int) -> None:
        """Find the ends of documents in each shard when it is opened."""
        self.reader.find_ends(eot_id)

    def start_process(self) -> None:
        """Map anew in a forked process."""
        self.reader.start_process()

    def close(self) -> None:
        """Stop the threads that read ahead, and wait until they have ended."""
        for prefetcher in list(self._prefetchers):
            prefetcher.wait()

    def locate(self, streams: Ints, sequences: Ints, length: int) -> "RowsOfShards":
        """Find rows by arithmetic."""
        starts = self.reader.stream_starts[streams] + np.maximum(sequences, 0) * length
        return ShardRows(self.reader, self.reader.locate(starts, length), length)

    def pieces_of(self, stream: int, sequence: int, length: int) -> list[tuple[int, int]]:
        """One piece."""
        return [(sequence * length, (sequence + 1) * length)]

    def sequences_with(self, stream: int, first: int, stop: int, length: int) -> Ints:
        """By arithmetic."""
        return np.arange(first // length, (stop - 1) // length + 1)

    @contextmanager
    def read_ahead(
        self, upcoming: Iterable[tuple[range, Ints, Ints]], length: int, bounds: ReadAhead
    ) -> Iterator[Callable[[], None]]:
        """Open the shards of coming steps in threads."""
        prefetcher = Prefetcher(
            self.reader,
            self._first_uses(upcoming, length),
            ahead=bounds.steps,
            limit=self._prefetch_limit,
            most=self.reader.most_ahead,
            now=bounds.now,
        )
        self._prefetchers.add(prefetcher)
        try:
            yield prefetcher.require_well
        finally:
            prefetcher.stop()

    def _first_uses(
        self, upcoming: Iterable[tuple[range, Ints, Ints]], length: int
    ) -> Iterator[tuple[int, int]]:
        """Step and shard of each first use, leaving out what is ready."""
        for steps, streams, sequences in upcoming:
            if self.reader.ready.all():
                return
            rows, shards = self.locate(streams.reshape(-1), sequences.reshape(-1), length).uses()
            distinct, at = np.unique(shards, return_index=True)
            for place in np.argsort(at).tolist():
                shard = int(distinct[place])
                if not self.reader.ready[shard]:
                    yield steps[int(rows[at[place]]) // streams.shape[1]], shard


class RowsOfShards(TokenRows, Protocol):
    """Rows that lie in shards."""

    def uses(self) -> tuple[Ints, Ints]:
        """Row and shard of each use, by row; a shard may stand there more than once."""


class ShardRows:
    """Rows whose places in the shards are known; see `TokenRows`."""

    def __init__(self, reader: TokenReader, located: Located, length: int) -> None:
        self.located = located
        self._reader = reader
        self._length = length

    def ready(self, rows: slice) -> bool:
        """Whether all their shards are open."""
        return bool(self._reader.ready[self._shards(rows)].all())

    def held(self, rows: slice) -> AbstractContextManager[None]:
        """Open their shards and keep them open."""
        return self._reader.held(self._shards(rows))

    def tokens(self, rows: slice) -> Tokens:
        """Copy them out of the shards."""
        return self._reader.gather(self.located, rows, self._length)

    def start_inside(self, rows: slice, eot_id: int) -> Flags:
        """Whether the token before each is no end of text; a stream begins with a document."""
        reader = self._reader
        before, known = reader.before(self.located, rows)
        unknown = np.flatnonzero(~known)  # the first rows of their shards
        if unknown.size:
            starts = self.located.starts[rows]
            before = before.copy()
            before[unknown] = eot_id
            unknown = unknown[~np.isin(starts[unknown], reader.stream_starts)]
        if unknown.size:
            located = reader.locate(starts[unknown] - 1, 1)
            with reader.held(located.first):
                before[unknown] = reader.gather(located, slice(0, len(unknown)), 1)[:, 0]
        inside: Flags = before != eot_id
        return inside

    def boundaries(self, rows: slice, *, steps: int, real: Flags, targets: bool) -> Boundaries:
        """From the ends that were found when the shards were opened."""
        return self._reader.boundaries(
            self.located, rows, self._length, steps=steps, real=real, targets=targets
        )

    def spans(self, rows: slice) -> Spans:
        """Each is one."""
        starts = self.located.starts[rows]
        streams, origins = self._reader.streams_of(starts)
        lengths = np.full(len(starts), self._length)
        return Spans(
            streams=streams,
            rows=np.arange(len(starts)),
            starts=starts - origins,
            lengths=lengths,
            rooms=lengths,
        )

    def uses(self) -> tuple[Ints, Ints]:
        """The first and the last shard of each row."""
        located = self.located
        # row by row the first and the last shard: (2 * rows,)
        shards = np.stack([located.first, located.last], axis=1).reshape(-1)
        return np.repeat(np.arange(len(located.first)), 2), shards

    def cost(self, rows: slice) -> int:
        """Bytes of the shards that they touch."""
        return int(self._reader.raw_sizes[np.unique(self._shards(rows))].sum())

    def _shards(self, rows: slice) -> Ints:
        return self._reader.shards_of(self.located, rows)
