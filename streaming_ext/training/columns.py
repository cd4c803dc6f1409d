"""Columns: the contents of a batch besides `tokens`, each by its name in `extras`.

A column of rows is made where the shards are read, in a worker if there are any; a column of
segments (`features/masks.py`) where batches are handed over. To add one, write its class, put
it in `COLUMNS`, and describe it in docs/how-to/train.md.
"""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from streaming_ext.base.arrays import Flags, Ints, Tokens
from streaming_ext.reading.source import Rows
from streaming_ext.training.features.masks import (
    CuSeqlens,
    DocumentIds,
    LossMask,
    MaxSeqlen,
    PositionIds,
    SegmentColumn,
    Targets,
)

Batch = dict[str, Any]
MASKED: Final = "masked"  # rows that a filter masked: for those who count, not for training


class Column(Protocol):
    """The values of a batch under one name.

    Attributes:
        name: the name in a batch.
        per_token: True for a value per token, which context-parallel ranks divide.
        needs_ends: True for columns that need the id that ends a document.
    """

    name: str
    per_token: bool
    needs_ends: bool

    def identity(self) -> dict[str, Any]:
        """The settings that change which rows count, or what is counted, as a state names them."""


class ReadRows(NamedTuple):
    """Rows of a batch as they were read.

    Attributes:
        tokens: their ids: (rows, length).
        located: the located rows, of which these are a slice.
        rows: the slice of the located rows.
        real: False for those that only fill up a step: (rows,).
        streams, sequences: stream of each row, and its number there: (rows,).
        eot_id: the id that ends a document, -1 if it is unknown.
    """

    tokens: Tokens
    located: Rows
    rows: slice
    real: Flags
    streams: Ints
    sequences: Ints
    eot_id: int


class RowColumn(Column):
    """A column that is made where shards are read.

    Attributes:
        token_bytes: bytes per token that it adds to what a worker sends.
    """

    per_token, needs_ends, token_bytes = False, False, 0

    def identity(self) -> dict[str, Any]:
        """Nothing, for most columns."""
        return {}

    @abstractmethod
    def add(self, batch: Batch, read: ReadRows) -> None:
        """Add the values of some rows to a batch."""


class SequenceIds(RowColumn):
    """The number of each row in its stream, in the order on disk: (rows,)."""

    name = "sequence_ids"

    def add(self, batch: Batch, read: ReadRows) -> None:
        """See `RowColumn`."""
        batch[self.name] = read.sequences


class StreamIds(RowColumn):
    """The stream of each row: (rows,)."""

    name = "stream_ids"

    def add(self, batch: Batch, read: ReadRows) -> None:
        """See `RowColumn`."""
        batch[self.name] = read.streams


class StreamDomains(RowColumn):
    """The domain of each row's stream: (rows,); see `TokenDomains` for domains of tokens.

    Attributes:
        domains: the domains by their numbers.
        of_streams: the number of each stream's domain.
    """

    name = "domain_ids"

    def __init__(self, names: Sequence[str]) -> None:
        """Number the domains in the order of the streams.

        Args:
            names: the name of each stream's domain.
        """
        self.domains = tuple(dict.fromkeys(names))
        self.of_streams: Ints = np.array([self.domains.index(name) for name in names])

    def add(self, batch: Batch, read: ReadRows) -> None:
        """See `RowColumn`."""
        batch[self.name] = self.of_streams[read.streams]


class StartsInside(RowColumn):
    """True for rows that begin in the middle of a document: (rows,)."""

    name, needs_ends = "starts_inside", True

    def add(self, batch: Batch, read: ReadRows) -> None:
        """See `RowColumn`."""
        batch[self.name] = read.located.start_inside(read.rows, read.eot_id) & read.real


# In the order in which a batch holds them.
COLUMNS: Final[dict[str, type[RowColumn] | type[SegmentColumn]]] = {
    column.name: column
    for column in (
        SequenceIds,
        StreamIds,
        StreamDomains,
        StartsInside,
        Targets,
        LossMask,
        PositionIds,
        DocumentIds,
        CuSeqlens,
        MaxSeqlen,
    )
}


def columns_of(extras: Collection[str], domains: RowColumn) -> list[RowColumn | SegmentColumn]:
    """The columns that a user wants, in the order in which a batch holds them.

    Args:
        extras: their names.
        domains: the column of domains, of streams or of tokens.
    """
    wanted = [column for name, column in COLUMNS.items() if name in extras]
    return [domains if column is StreamDomains else column() for column in wanted]
