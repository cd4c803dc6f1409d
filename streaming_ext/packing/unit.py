"""The rows of one unit: a run of documents that are packed among themselves.

A document that is longer than a row is cut into full rows, and the rest is packed like a document:

    rows of 8, documents of 5, 19 and 3 at tokens 0, 5 and 24 of the stream
    full rows [5, 13) and [13, 21); rests 5, 3 and 3 make the row [0, 5) + [24, 27) or
    [0, 5) + [21, 24), and another one of 3 with a padding of 5
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.packing.best_fit import best_fit, rows_of
from streaming_ext.sampler.order import Ints, key_of, mix

_DOCUMENTS, _ROWS = range(2)  # what is permuted, part of each key


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPieces:
    """The pieces of some rows, row by row.

    Attributes:
        firsts: first piece of each row, then the number of pieces: (rows + 1,).
        starts: first token of each piece in the split's stream: (pieces,).
        lengths: tokens of each piece: (pieces,).
        begins: whether a piece begins its document: (pieces,).
        ends: whether it ends its document: (pieces,).
    """

    firsts: Ints
    starts: Ints
    lengths: Ints
    begins: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.bool_]


def pack_unit(starts: Ints, lengths: Ints, *, length: int, key: int) -> RowPieces:
    """Pack some documents into rows.

    Which document of one length stands where, and the order of the rows, are keyed permutations.
    Within a row documents stand as in the stream.

    Args:
        starts: first token of each document in the stream: (documents,).
        lengths: tokens of each, its end-of-text id counted: (documents,).
        length: tokens a row.
        key: of the permutations.
    """
    full, rest = np.divmod(lengths, length)
    # The rests in the order in which they are taken: the longest first.
    order = _shuffled(len(rest), key, _DOCUMENTS)
    order = order[np.argsort(_small(rest[order]), kind="stable")][::-1]
    order = order[: np.count_nonzero(rest)]
    rows, count = _packed(rest[order], length)
    row_of = np.empty(len(rest), np.int64)
    row_of[order] = rows
    # Full rows behind them: (full rows,) of all documents.
    owners = np.repeat(np.arange(len(full)), full)
    number = np.arange(len(owners)) - np.repeat(np.cumsum(full) - full, full)
    # All pieces: the rests in the order of the stream, then the full rows.
    rests = np.flatnonzero(rest)
    documents = np.concatenate([rests, owners])
    inside = np.concatenate([full[rests], number]) * length
    sizes = np.concatenate([rest[rests], np.full(len(owners), length)])
    row = np.concatenate([row_of[rests], count + np.arange(len(owners))])
    count += len(owners)
    # Rows in any order, the pieces of each together.
    row = _shuffled(count, key, _ROWS)[row]
    by_row = _sorted_places(row)
    documents, inside, sizes = documents[by_row], inside[by_row], sizes[by_row]
    return RowPieces(
        firsts=np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))]),
        starts=starts[documents] + inside,
        lengths=sizes,
        begins=inside == 0,
        ends=inside + sizes == lengths[documents],
    )


def _packed(sizes: Ints, length: int) -> tuple[Ints, int]:
    """The row of each of some documents that stand by falling size, and how many rows there are."""
    moves = best_fit(np.bincount(sizes, minlength=length + 1), length)
    rows, count = rows_of(moves, length)
    # A row that takes several of one length stands there as often.
    return np.repeat(rows, np.repeat(moves.times, moves.rows)), count


def _shuffled(count: int, key: int, what: int) -> Ints:
    """A keyed permutation of range(count)."""
    words = mix(key_of(key, what) ^ np.arange(count, dtype=np.uint64))
    # Of 16 bits, which numpy sorts in linear time; the few that have them alike keep their order.
    return np.argsort(words.astype(np.uint16), kind="stable")


def _small(values: Ints) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The values in the type that sorts fastest."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def _sorted_places(values: Ints) -> Ints:
    """A stable argsort, in linear time where values have few bits."""
    low = np.argsort(values.astype(np.uint16), kind="stable")
    high = values[low] >> 16
    result: Ints = low[np.argsort(_small(high), kind="stable")] if high.any() else low
    return result
