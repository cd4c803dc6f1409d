"""Best fit decreasing on a histogram of lengths: which lengths share a row.

Documents are taken from the longest to the shortest, and each goes into the fullest row that still
holds it. Rows with the same room are interchangeable, and so are documents of one length. So a move
takes as many rows as it can at once, and the work grows with the lengths that there are, not with
the documents:

    2,000 documents of 700 and 2,000 of 600 in rows of 2,048
    move 1: 1,000 new rows take 2 of 700 each, and have a room of 648
    move 2: those 1,000 rows take 1 of 600 each; move 3: 333 new rows take 3 of 600; ...

The rows of one group: a run of documents that are packed among themselves.

A document that is longer than a row is cut into full rows, and the rest is packed like a document:

    rows of 8, documents of 5, 19 and 3 at tokens 0, 5 and 24 of the stream
    full rows [5, 13) and [13, 21); rests 5, 3 and 3 make the row [0, 5) + [24, 27) or
    [0, 5) + [21, 24), and another one of 3 with a padding of 5
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Flags, Ints, ranges
from streaming_ext.order.order import Keys, key_of, mix

_FIELDS: Final = 4


class Moves(NamedTuple):
    """What was done, in order: all arrays of shape (moves,).

    Rows of one room stand in a queue: a move takes those at its front, and puts them, less roomy,
    at the end of another one.

    Attributes:
        lengths: of the documents that the rows take.
        times: how many each row takes.
        rows: how many rows.
        rooms: of these rows before, in tokens; that of an empty row for new ones.
    """

    lengths: Ints
    times: Ints
    rows: Ints
    rooms: Ints


def best_fit(counts: Ints, length: int) -> Moves:
    """Pack documents into rows.

    Args:
        counts: how many documents have each length: (length + 1,).
        length: tokens a row.
    """
    moves: list[tuple[int, int, int, int]] = []
    waiting = [0] * (length + 1)  # rows with each room
    open_rooms = 0  # bit r: some row has room r
    for size in reversed(np.flatnonzero(counts).tolist()):
        left = int(counts[size])
        while left:
            fitting = open_rooms >> size
            if fitting:
                room = size + (fitting & -fitting).bit_length() - 1
                available = waiting[room]
            else:
                room = length
                available = left  # as many new rows as may be needed
            each = room // size
            rows = min(available, left // each)
            if not rows:  # the last row takes what is left
                each, rows = left, 1
            moves.append((size, each, rows, room))
            left -= rows * each
            if fitting:
                waiting[room] = available - rows
                if available == rows:
                    open_rooms ^= 1 << room
            room -= each * size
            if room:
                waiting[room] += rows
                open_rooms |= 1 << room
    return Moves(*np.array(moves, np.int64).reshape(-1, _FIELDS).T)


def rows_of(moves: Moves, length: int) -> tuple[Ints, int]:
    """Number the rows in the order in which they were begun.

    Rows that have one room are taken in the order in which they came to have it, so the n-th that
    is taken is the n-th that came:

        move 1 puts two new rows at entries 0 and 1, which have a room of 3 left
        move 2 takes one row with a room of 3 to entry 2: that of entry 0
        move 3 takes one row with a room of 3 to entry 3: that of entry 1

    Args:
        moves: of `best_fit`.
        length: tokens a row.

    Returns:
        the row of each entry that moves take, one move after another: (sum of moves.rows,); and
        the number of rows.
    """
    count = int(moves.rows.sum())
    is_new = moves.rooms == length
    left = moves.rooms - moves.times * moves.lengths
    came, came_first = _by_room(moves, left, left > 0, length)
    taken, taken_first = _by_room(moves, moves.rooms, ~is_new, length)
    room = np.repeat(np.arange(length + 1), np.diff(taken_first))
    # The entry that each entry was taken from; of new rows themselves.
    before = np.arange(count)
    before[taken] = came[np.arange(len(taken)) + (came_first - taken_first)[room]]
    while not np.array_equal(further := before[before], before):
        before = further
    new = np.repeat(is_new, moves.rows)
    number = np.cumsum(new) - 1
    return number[before], int(np.count_nonzero(new))


def _by_room(moves: Moves, rooms: Ints, chosen: Flags, length: int) -> tuple[Ints, Ints]:
    """The entries of some moves, by a room of each and in their order; where each room begins."""
    order = np.argsort(rooms, kind="stable")
    order = order[chosen[order]]
    rows = moves.rows[order]
    firsts = (np.cumsum(moves.rows) - moves.rows)[order]
    first = np.searchsorted(rooms[order], np.arange(length + 2))
    result: Ints = np.append(0, np.cumsum(rows))[first]
    return ranges(firsts, rows), result


_DOCUMENTS, _ROWS = range(2)  # what is permuted, part of each key
_WORD: Final = np.uint64(16)  # bits of what permutations sort by
_WORD_MASK: Final = np.uint64((1 << 16) - 1)
_MARKS: Final = 2  # bits beside the length of a segment
_BEGINS, _ENDS = np.int64(1), np.int64(2)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSegments:
    """The segments of some rows, row by row.

    Attributes:
        firsts: first segment of each row, then the number of segments: (rows + 1,).
        starts: first token of each segment in the split's stream: (segments,).
        lengths: tokens of each segment: (segments,).
        begins: whether a segment begins its document: (segments,).
        ends: whether it ends its document: (segments,).
    """

    firsts: Ints
    starts: Ints
    lengths: Ints
    begins: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.bool_]


def pack_group(
    starts: Ints, lengths: Ints, *, length: int, key: int, multiple: int = 1
) -> RowSegments:
    """Pack some documents into rows.

    Which document of one length stands where, and the order of the rows, are keyed permutations.
    Within a row documents stand as in the stream.

    Args:
        starts: first token of each document in the stream: (documents,).
        lengths: tokens of each, its end-of-text id counted: (documents,).
        length: tokens a row.
        key: of the permutations.
        multiple: of tokens that a segment takes in its row; divides `length`.
    """
    full = lengths // length
    rest = lengths - full * length
    room = rounded_up(rest, multiple)
    # The rests in the order in which they are taken: the longest first.
    order = stable_argsort(
        room.astype(np.uint64) << _WORD | _words(len(rest), key, _DOCUMENTS),
        bits=length.bit_length() + int(_WORD),
    )[::-1]
    order = order[: np.count_nonzero(rest)]
    rows, count = _packed(room[order], length)
    row_of = np.empty(len(rest), np.int64)
    row_of[order] = rows
    # Full rows behind them: (full rows,) of all documents.
    owners = np.repeat(np.arange(len(full)), full)
    number = ranges(np.zeros_like(full), full)
    # All segments: the rests in the order of the stream, then the full rows.
    rests = np.flatnonzero(rest)
    before = full[rests] * length
    first = np.concatenate([starts[rests] + before, starts[owners] + number * length])
    last = (number == full[owners] - 1) & (rest[owners] == 0)
    marked = np.concatenate(
        [
            _marked(rest[rests], before == 0, np.ones(len(rests), bool)),
            _marked(np.full(len(owners), length), number == 0, last),
        ]
    )
    row = np.concatenate([row_of[rests], count + np.arange(len(owners))])
    count += len(owners)
    # Rows in any order, the segments of each together.
    row = stable_argsort(_words(count, key, _ROWS), bits=int(_WORD))[row]
    by_row = stable_argsort(row.astype(np.uint64), bits=count.bit_length())
    marked = marked[by_row]
    return RowSegments(
        firsts=np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))]),
        starts=first[by_row],
        lengths=marked >> _MARKS,
        begins=(marked & _BEGINS).astype(bool),
        ends=(marked & _ENDS).astype(bool),
    )


def rounded_up(lengths: Ints, multiple: int) -> Ints:
    """The least multiples that hold some lengths."""
    return lengths if multiple == 1 else -(-lengths // multiple) * multiple


def _marked(lengths: Ints, begins: Flags, ends: Flags) -> Ints:
    """Pieces in one number each, which is sorted at once."""
    return lengths << _MARKS | begins * _BEGINS | ends * _ENDS


def _packed(sizes: Ints, length: int) -> tuple[Ints, int]:
    """The row of each of some documents that stand by falling size, and how many rows there are."""
    moves = best_fit(np.bincount(sizes, minlength=length + 1), length)
    rows, count = rows_of(moves, length)
    # A row that takes several of one length stands there as often.
    return np.repeat(rows, np.repeat(moves.times, moves.rows)), count


def _words(count: int, key: int, what: int) -> Keys:
    """What a keyed permutation sorts by: (count,); the few that are alike keep their order."""
    return mix(key_of(key, what) ^ np.arange(count, dtype=np.uint64)) & _WORD_MASK


def stable_argsort(values: Keys, *, bits: int) -> Ints:
    """A stable argsort of values below 2 to the power of `bits`.

    Where a value and its entry fit one word, words are sorted: three times as fast.
    """
    room = len(values).bit_length()
    if bits + room > 64:
        return np.argsort(values, kind="stable")
    words = values << np.uint64(room)
    words |= np.arange(len(values), dtype=np.uint64)
    words.sort()
    words &= np.uint64((1 << room) - 1)
    return words.view(np.int64)
