"""What batches are made of: rows of token ids, wherever they come from.

Order, partition, checkpoint and loader know a source by these two protocols alone. Rows of mapped
shards are one (`shard_source.py`); packed documents, or text that is tokenized on the spot, can be
others.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from streaming_ext.base.arrays import Flags, Ints, Tokens
from streaming_ext.batches.masks import Boundaries


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """What rows are made of, in their streams; padding is no span.

    Attributes:
        streams: stream of each row: (rows,).
        rows: number of the row of each span, ascending: (spans,).
        starts: first token of each in its stream: (spans,).
        lengths: tokens of each: (spans,).
        rooms: tokens that each takes in its row, with the padding behind it: (spans,).
    """

    streams: Ints
    rows: Ints
    starts: Ints
    lengths: Ints
    rooms: Ints


class TokenRows(Protocol):
    """Some rows that were found and not read yet; `rows` chooses among them."""

    def ready(self, rows: slice) -> bool:
        """Whether they can be read without waiting."""

    def held(self, rows: slice) -> AbstractContextManager[None]:
        """Have them where they can be read, until the block ends; waits for them."""

    def tokens(self, rows: slice) -> Tokens:
        """Their ids, which nobody else has: (rows, length). Only while they are held."""

    def start_inside(self, rows: slice, eot_id: int) -> Flags:
        """Whether each begins in the middle of a document: (rows,). Only while they are held."""

    def boundaries(self, rows: slice, *, steps: int, real: Flags, targets: bool) -> Boundaries:
        """Where documents begin and end in them. Only while they are held.

        Args:
            rows: which of them.
            steps: how many steps they make.
            real: False for rows that only fill up a batch: (rows,).
            targets: whether targets are wanted.
        """

    def spans(self, rows: slice) -> Spans:
        """What they are made of; nothing is read for it."""

    def cost(self, rows: slice) -> int:
        """Bytes that must be held to read them."""


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """How far a source may run ahead of training.

    Attributes:
        steps: at most so many.
        now: the step that training is at.
    """

    steps: int
    now: Callable[[], int]


class TokenSource(Protocol):
    """Sequences of token ids by stream and number.

    Attributes:
        dtype: type of an id.
        fingerprints: one a stream: two streams share it only if every id is the same.
        eot_id: the id that ends a document, None where it is unknown.
        patience: seconds after which a row that does not come is a failure.
        hold_limit: bytes that one batch in the making should hold at most, None for no limit.
        multiple: of tokens that each of `pieces_of` takes in its row.
        shard_count: pieces that are read as a whole, for how far to read ahead.
    """

    dtype: np.dtype[Any]
    fingerprints: tuple[str, ...]
    eot_id: int | None
    patience: float
    hold_limit: int | None
    multiple: int
    shard_count: int

    def bounds(self, length: int) -> list[Ints]:
        """For each stream the first sequence of each unit of the order, then their number."""

    def find_ends(self, eot_id: int) -> None:
        """Be ready to tell boundaries; called before any row is read."""

    def start_process(self) -> None:
        """Leave what belongs to the process that this one was forked from."""

    def close(self) -> None:
        """End what reads ahead in this process, and wait until it has ended."""

    def locate(self, streams: Ints, sequences: Ints, length: int) -> TokenRows:
        """Find rows; a sequence below zero stands for any: (rows,) each."""

    def pieces_of(self, stream: int, sequence: int, length: int) -> list[tuple[int, int]]:
        """What a sequence is made of: first token and the one behind, in its stream, of each."""

    def sequences_with(self, stream: int, first: int, stop: int, length: int) -> Ints:
        """The sequences that hold any of the tokens [first, stop) of a stream, sorted."""

    def read_ahead(
        self, upcoming: Iterable[tuple[range, Ints, Ints]], length: int, bounds: ReadAhead
    ) -> AbstractContextManager[Callable[[], None]]:
        """Get rows ready in the background, in their order, until the block ends.

        What it gives raises what went wrong there, where the one who reads would not meet it.

        Args:
            upcoming: steps with their streams and sequences: (steps, rows of a step) each.
            length: tokens a row.
            bounds: how far to go.
        """
