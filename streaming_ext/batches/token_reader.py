"""Tokens by their place in the stream, gathered from memory-mapped shards a whole batch at a time.

The streams of all datasets are laid end to end in one space of token numbers, their shards in one
arena. A shard is verified by each process on its first use; a damaged copy is fetched once more.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Flags, Ints, Tokens
from streaming_ext.batches.ends import DocumentEnds
from streaming_ext.batches.masks import Boundaries, Pieces
from streaming_ext.errors import UsageError
from streaming_ext.shards.cache import ShardCache
from streaming_ext.shards.mapped import MappedShards

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

    def __init__(self, caches: Sequence[ShardCache], *, maps: bool = True) -> None:
        """Lay out the token space; no shard is opened yet.

        Args:
            caches: of the streams.
            maps: whether shards are mapped; else they are read by position.

        Raises:
            UsageError: the streams store ids of different types.
        """
        self.caches, self._maps = tuple(caches), maps
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
        self.raw_sizes: Ints = np.concatenate([index.raw_sizes for index in indexes])
        self._headers: Ints = np.concatenate([index.headers for index in indexes])
        self._eot: int | None = None
        self._start()

    def find_ends(self, eot_id: int) -> None:
        """Find the end-of-text ids of each shard when it is opened; before any is."""
        self._eot = eot_id
        self._start()

    def start_process(self) -> MappedShards:
        """Leave what belongs to the process that this one was forked from; returns the shards."""
        if os.getpid() != self._process:
            del self._shards, self._arena  # first: files that a fork has open count as its own
            self._start()
        return self._shards

    def _start(self) -> None:
        self._process = os.getpid()
        self._ends = None
        if self._eot is not None:
            self._ends = DocumentEnds(np.diff(self.shard_starts), self._eot)
        watcher = None if self._ends is None else _EndsOfShards(self._ends, self.dtype)
        self._shards = MappedShards(self.caches, most=MAX_MAPPED, watcher=watcher, maps=self._maps)
        self._arena = self._shards.arena
        self._data = self._arena.offsets + self._headers

    def __getstate__(self) -> dict[str, object]:
        """What another process needs; mappings are made anew there."""
        own = ("_shards", "_arena", "_data", "_ends")
        return {key: value for key, value in self.__dict__.items() if key not in own}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Start without mappings."""
        self.__dict__.update(state)
        self._start()

    @property
    def ready(self) -> Flags:
        """Which shards are open: (shards,)."""
        return self._shards.ready

    @property
    def limited(self) -> bool:
        """Whether a cache has a limit, so that shards are closed to make room."""
        return self._shards.limited

    @property
    def most_ahead(self) -> int:
        """Shards that should be open ahead of their use, at most."""
        return self._shards.most // 2

    @property
    def num_shards(self) -> int:
        """Shards of all streams."""
        return len(self.raw_sizes)

    def streams_of(self, tokens: Ints) -> tuple[Ints, Ints]:
        """The stream of each token, and the first token of that stream: (tokens,) each."""
        if len(self.stream_starts) == 2:
            return np.zeros_like(tokens), np.zeros_like(tokens)
        streams = np.searchsorted(self.stream_starts, tokens, side="right") - 1
        return streams, self.stream_starts[streams]

    def locate(self, starts: Ints, length: int | Ints) -> Located:
        """Find rows of `length` tokens, or of as many each, that begin at `starts`: (rows,)."""
        first = np.searchsorted(self.shard_starts, starts, side="right") - 1
        ends = starts + (length - 1)
        last = first
        if (ends >= self.shard_starts[first + 1]).any():
            last = np.searchsorted(self.shard_starts, ends, side="right") - 1
        inside = (starts - self.shard_starts[first]) * self.dtype.itemsize
        return Located(starts=starts, first=first, last=last, addresses=self._data[first] + inside)

    def shards_touched(self, located: Located) -> tuple[Ints, Ints]:
        """Row and shard of each piece of the rows that lies in one shard: (pieces,) each."""
        return self._pieces_of(located, slice(None))

    def shards_of(self, located: Located, rows: slice) -> Ints:
        """All shards that some rows touch, some of them more than once."""
        if located.last is located.first:
            return located.first[rows]
        return self._pieces_of(located, rows)[1]

    @contextlib.contextmanager
    def held(self, shards: Ints) -> Iterator[None]:
        """Have shards open, verified and mapped until the block ends: what `gather` reads.

        Raises:
            CorruptDatasetError: one is missing or damaged, also when fetched once more.
            StorageError: storage or the local disk refuses.
        """
        with self.start_process().held(shards):
            yield

    def open(self, shard: int) -> None:
        """Open one shard ahead of its use; any thread may ask."""
        self._shards.open(shard)

    def gather(self, located: Located, rows: slice, length: int) -> Tokens:
        """Copy rows out of shards that are `held`: (rows, length)."""
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

    def runs(self, addresses: Ints, tokens: int) -> npt.NDArray[np.void]:
        """Copies of as many tokens from each address, in shards that are `held`: (addresses,)."""
        width = tokens * self.dtype.itemsize
        copied: npt.NDArray[np.void] = self._arena.rows(addresses, width).view(f"V{width}")
        return copied[:, 0]

    def last_run(self, shards: Ints, tokens: int) -> Ints:
        """The last address in each shard that so many tokens, below a page, can be read from."""
        return self._arena.ends[shards] - tokens * self.dtype.itemsize

    def before(self, located: Located, rows: slice | Ints) -> tuple[Tokens, Flags]:
        """The token before each row, and whether it lies in the same shard: (rows,) each."""
        inside = located.starts[rows] > self.shard_starts[located.first[rows]]
        return self._tokens_at(located.addresses[rows] - self.dtype.itemsize, inside), inside

    def after(self, located: Located, rows: slice, length: int | Ints) -> Ints:
        """The token after each row of `length`, -1 where its last token's shard ends: (rows,)."""
        last = located.last[rows]
        ends = located.starts[rows] + length
        address = self._data[last] + (ends - self.shard_starts[last]) * self.dtype.itemsize
        inside = ends < self.shard_starts[last + 1]
        return np.where(inside, self._tokens_at(address, inside), -1)

    def boundaries(
        self, located: Located, rows: slice, length: int, *, steps: int, real: Flags, targets: bool
    ) -> Boundaries:
        """Where documents begin and end in some rows of `steps` steps, whose shards are `held`.

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
        return Boundaries.find(
            self._pieces(located, rows, length, real),
            self._ends,
            after,
            rows=len(real) // steps,
            length=length,
        )

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
            return Pieces(
                shards=first,
                starts=starts,
                stops=starts + length,
                rows=number,
                columns=np.zeros_like(number),
                empty=~real,
                opens=every,
                closes=every,
            )
        row, shards = self._pieces_of(located, rows)
        begins = self.shard_starts[shards]
        start = np.maximum(starts[row], begins)
        stop = np.minimum(starts[row] + length, self.shard_starts[shards + 1])
        opens, closes = shards == first[row], shards == located.last[rows][row]
        return Pieces(
            shards=shards,
            starts=start - begins,
            stops=stop - begins,
            rows=row,
            columns=start - starts[row],
            empty=~real[row],
            opens=opens,
            closes=closes,
        )

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


@dataclass(frozen=True, slots=True)
class _EndsOfShards:
    """Keeps the ends of documents of those shards that are open."""

    ends: DocumentEnds
    dtype: np.dtype[Any]

    def opened(self, shard: int, raw: npt.NDArray[np.uint8]) -> None:
        self.ends.add(shard, raw, self.dtype)

    def closed(self, shard: int) -> None:
        self.ends.drop(shard)

    def surplus(self, shards: int) -> int:
        return shards // 4 if self.ends.bytes > MAX_ENDS else 0
