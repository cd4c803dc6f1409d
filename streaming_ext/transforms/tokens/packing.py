"""`pack_chunk` and `pad`: whole samples in rows, and rows filled up to one length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streaming_ext.errors import UsageError
from streaming_ext.sampler.orders.order import Ints
from streaming_ext.transforms.block import Block, Ragged, concat, ranges
from streaming_ext.transforms.flow import Flow, Opening, Source, State, inner
from streaming_ext.transforms.steps.dropping import Dropping
from streaming_ext.transforms.steps.functions import BlockMap
from streaming_ext.transforms.tokens.chunks import DOCUMENTS, columns_of
from streaming_ext.transforms.tokens.places import Places


def _of_rows(column: Ragged, longest: int | None) -> Ints:
    """The samples that rows hold: none that is empty, or too long."""
    lengths = column.lengths
    return np.flatnonzero((lengths > 0) & (longest is None or lengths <= longest))


def packed(lengths: Sequence[int], row: int) -> list[int]:
    """How many samples go into each row, in their order: as many as fit, or one that is too long.

    Lengths 3, 2, 4, 9, 1 in rows of 5 give 2, 1, 1, 1.
    """
    counts, held, used = [], 0, 0
    for length in lengths:
        if held and used + length > row:
            counts.append(held)
            held = used = 0
        held += 1
        used += length
    return [*counts, held] if held else counts


class PackFlow(Flow):
    """Rows of whole samples; a sample longer than a row is cut, or left out."""

    def __init__(
        self, source: Flow, length: int, names: Sequence[str], *, discards: Dropping,
        longest: int | None, skip: int,
    ) -> None:  # fmt: skip
        """Begin, or go on.

        Args:
            source: of samples.
            length: of a row, in tokens.
            names: of the columns.
            discards: leaves samples out that are empty or too long.
            longest: tokens of a sample that is not too long; None to cut them.
            skip: samples of the source that rows before had.
        """
        self._source = source
        self._length, self._names, self._discards = length, names, discards
        self._longest = longest
        self._places = Places(source.state(), skip)  # in samples
        self._open = Block(samples=[])  # samples of a row that more may go into
        self._numbers = np.empty(0, np.int64)  # of these in the source
        self._ended = False

    def pull(self, most: int) -> Block | None:
        if self._ended:
            return None
        begin, first = self._source.state(), self._places.read
        block = self._source.pull(DOCUMENTS)
        if block is None:
            self._ended = True
        elif len(block):
            skip = self._places.skip
            self._places.add(begin, len(block))
            self._hold(block.slice(min(skip, len(block)), len(block)), first + skip)
        return self._rows()

    def _hold(self, block: Block, first: int) -> None:
        """Put samples behind those of the open row."""
        columns = columns_of(block, self._names) if len(block) else {}
        numbers = first + np.arange(len(block))
        if columns:
            kept = _of_rows(columns[self._names[0]], self._longest)
            columns = {name: column.gather(kept) for name, column in columns.items()}
            numbers = numbers[kept]
            passes = self._source.passes()
            self._ended = self._discards.is_all(len(block), len(kept), passes)
        self._open = concat([self._open, Block(columns)])
        self._numbers = np.append(self._numbers, numbers)

    def _rows(self) -> Block:
        """The rows that are full; at the end, the open one too."""
        block = self._open
        if not len(block):
            self._places.use(self._places.read)
            return block
        lengths = block.tokens(self._names[0]).lengths
        counts = packed(lengths.tolist(), self._length)
        whole = counts if self._ended else counts[:-1]
        done = sum(whole)
        self._open = block.slice(done, len(block))
        self._numbers = self._numbers[done:]
        self._places.use(int(self._numbers[0]) if len(self._numbers) else self._places.read)
        if not whole:
            return Block(samples=[])
        ends = np.cumsum(whole)
        return Block({name: self._joined(block.tokens(name).slice(0, done), ends)
                      for name in self._names})  # fmt: skip

    def _joined(self, column: Ragged, ends: Ints) -> Ragged:
        """Rows out of samples; only one of a single sample may be too long."""
        starts = column.offsets[np.append(0, ends[:-1])]
        lengths = np.minimum(column.offsets[ends] - starts, self._length)
        return Ragged.of_lengths(column.values[ranges(starts, lengths)], lengths)

    def state(self) -> State:
        if self._ended:
            return {"source": self._source.state(), "skip": 0}
        return self._places.state(self._source.state())

    def close(self) -> None:
        self._source.close()


@dataclass(frozen=True, slots=True)
class Padding:
    """Columns filled up to one length, each with a value of its own."""

    values: Mapping[str, int]
    length: int

    def __call__(self, block: Block) -> Block:
        """Rows of one length.

        Raises:
            UsageError: a sample is longer.
        """
        return block.with_columns({
            name: self._filled(name, block.tokens(name), value)
            for name, value in self.values.items()
        }) if len(block) else block  # fmt: skip

    def _filled(self, name: str, column: Ragged, value: int) -> Ragged:
        lengths = column.lengths
        if lengths.max() > self.length:
            raise UsageError(
                f"Column {name!r} of a sample has {lengths.max()} tokens, pad() fills up to "
                f"{self.length}. Give a larger chunk_length, or cut or filter before."
            )
        # (samples, length)
        rows = np.full((len(lengths), self.length), value, np.int64)
        rows[np.arange(self.length) < lengths[:, None]] = column.values[
            column.offsets[0] : column.offsets[-1]
        ]
        return Ragged.regular(rows)


def open_packed(
    source: Source,
    opening: Opening,
    state: State | None,
    *,
    length: int,
    names: Sequence[str],
    discard_long: bool,
) -> Flow:
    """`pack_chunk`."""
    below = opening.asking(names)

    longest = length if discard_long else None

    def keep(block: Block) -> Block:
        return block.gather(_of_rows(block.tokens(names[0]), longest))

    discards = Dropping(f"pack_chunk({length})", source, below, keep)
    return PackFlow(source.open(below, inner(state)), length, names, discards=discards,
                    longest=longest, skip=int(inner(state, "skip") or 0))  # fmt: skip


def open_padded(source: Source, opening: Opening, state: State | None, *, padding: Padding) -> Flow:
    """`pad`."""
    asked = opening.columns
    below = opening.asking(None if asked is None else asked | padding.values.keys())
    return BlockMap(source.open(below, state), padding)
