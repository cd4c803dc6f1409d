"""`chunk` and `concat_chunk`: rows of one length, of each sample alone or of all behind each other.

Of the samples 0..9, 10 11 12 and 20..26, in chunks of 6:

    chunk           0 1 2 3 4 5    20 21 22 23 24 25
    concat_chunk    0 1 2 3 4 5    6 7 8 9 10 11    12 20 21 22 23 24
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streaming_ext.errors import UsageError
from streaming_ext.transforms.block import Block, Ragged
from streaming_ext.transforms.flow import Flow, Opening, Source, State, inner
from streaming_ext.transforms.steps.dropping import Dropping, DroppingFlow
from streaming_ext.transforms.tokens.places import Places

DOCUMENTS = 2**16  # that are asked for at once; their source has a limit in bytes


def columns_of(block: Block, names: Sequence[str]) -> dict[str, Ragged]:
    """Some columns of tokens, as long as each other in every sample.

    Raises:
        UsageError: they are not.
    """
    found = {name: block.tokens(name) for name in names}
    first, *others = names
    for name in others:
        if not np.array_equal(found[name].lengths, found[first].lengths):
            raise UsageError(
                f"The columns {first!r} and {name!r} must be as long as each other in every sample."
            )
    return found


@dataclass(frozen=True, slots=True)
class Chunking:
    """Rows of each sample.

    Attributes:
        length: of a row, in tokens.
        names: of the columns.
        drop_remainder: whether a shorter rest is left out.
    """

    length: int
    names: Sequence[str]
    drop_remainder: bool

    def __call__(self, block: Block) -> Block:
        """The rows."""
        columns = columns_of(block, self.names)
        return Block({name: self._cut(column) for name, column in columns.items()})

    def _cut(self, column: Ragged) -> Ragged:
        length, lengths = self.length, column.lengths
        rows = lengths // length if self.drop_remainder else -(-lengths // length)
        sample = np.repeat(np.arange(len(lengths)), rows)
        number = np.arange(len(sample)) - np.repeat(np.cumsum(rows) - rows, rows)  # in its sample
        starts = column.offsets[:-1][sample] + number * length
        ends = np.minimum(starts + length, column.offsets[1:][sample])
        if self.drop_remainder:
            # (rows, length)
            return Ragged.regular(column.values[starts[:, None] + np.arange(length)])
        kept = column.values[column.offsets[0] : column.offsets[-1]]
        return Ragged.of_lengths(kept, ends - starts)


class ConcatChunkFlow(Flow):
    """Rows of all samples behind each other; what does not fill a row at the end is left out."""

    def __init__(self, source: Flow, length: int, names: Sequence[str], skip: int) -> None:
        """Begin, or go on.

        Args:
            source: of samples.
            length: of a row, in tokens.
            names: of the columns.
            skip: tokens of the source that rows before had.
        """
        self._source, self._length, self._names = source, length, names
        self._rest = {name: np.empty(0, np.int64) for name in names}  # tokens of no row yet
        self._places = Places(source.state(), skip)

    def pull(self, most: int) -> Block | None:
        begin = self._source.state()
        block = self._source.pull(DOCUMENTS)
        if block is None or not len(block):
            return block
        made, count = {}, 0
        for name, column in columns_of(block, self._names).items():
            tokens = column.values[column.offsets[0] : column.offsets[-1]]
            count = len(tokens)
            tokens, held = tokens[self._places.skip :], self._rest[name]
            whole = np.concatenate([held, tokens]) if len(held) else tokens
            cut = len(whole) - len(whole) % self._length
            self._rest[name] = whole[cut:].copy()  # a view would keep all
            made[name] = Ragged.regular(whole[:cut].reshape(-1, self._length))
        self._places.add(begin, count)
        self._places.use(self._places.read - len(self._rest[self._names[0]]))
        return Block(made)

    def state(self) -> State:
        return self._places.state(self._source.state())

    def close(self) -> None:
        self._source.close()


def open_chunk(
    source: Source,
    opening: Opening,
    state: State | None,
    *,
    length: int,
    names: Sequence[str],
    drop_remainder: bool,
) -> Flow:
    """`chunk`."""
    below, chunking = opening.asking(names), Chunking(length, names, drop_remainder)
    dropping = Dropping(f"chunk({length})", source, below, chunking)
    return DroppingFlow(source.open(below, state), dropping)


def open_concat_chunk(
    source: Source, opening: Opening, state: State | None, *, length: int, names: Sequence[str]
) -> Flow:
    """`concat_chunk`."""
    flow = source.open(opening.asking(names), inner(state))
    return ConcatChunkFlow(flow, length, names, int(inner(state, "skip") or 0))
