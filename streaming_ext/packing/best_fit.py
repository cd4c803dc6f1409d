"""Best fit decreasing on a histogram of lengths: which lengths share a row.

Documents are taken from the longest to the shortest, and each goes into the fullest row that still
holds it. Rows with the same room are interchangeable, and so are documents of one length. So a move
takes as many rows as it can at once, and the work grows with the lengths that there are, not with
the documents:

    2,000 documents of 700 and 2,000 of 600 in rows of 2,048
    move 1: 1,000 new rows take 2 of 700 each, and have a room of 648
    move 2: those 1,000 rows take 1 of 600 each; move 3: 333 new rows take 3 of 600; ...
"""

from typing import Final, NamedTuple

import numpy as np

from streaming_ext.sampler.order import Ints

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
                there = waiting[room]
            else:
                room = length
                there = left  # as many new rows as may be needed
            each = room // size
            rows = min(there, left // each)
            if not rows:  # the last row takes what is left
                each, rows = left, 1
            moves.append((size, each, rows, room))
            left -= rows * each
            if fitting:
                waiting[room] = there - rows
                if there == rows:
                    open_rooms ^= 1 << room
            room -= each * size
            if room:
                waiting[room] += rows
                open_rooms |= 1 << room
    return Moves(*np.array(moves, np.int64).reshape(-1, _FIELDS).T)


def rows_of(moves: Moves, length: int) -> tuple[Ints, int]:
    """Number the rows in the order in which they were begun.

    Args:
        moves: of `best_fit`.
        length: tokens a row.

    Returns:
        the row of each place that moves take, one move after another: (sum of moves.rows,); and
        the number of rows.
    """
    firsts = np.cumsum(moves.rows) - moves.rows
    rows = np.empty(int(moves.rows.sum()), np.int64)
    new = 0
    # Of each queue the pieces that were put there: the next to be taken stands at its beginning.
    queues: dict[int, list[tuple[int, int]]] = {}
    for size, each, count, room, first in zip(
        moves.lengths.tolist(), moves.times.tolist(), moves.rows.tolist(), moves.rooms.tolist(),
        firsts.tolist(), strict=True,
    ):  # fmt: skip
        if room == length:
            rows[first : first + count] = np.arange(new, new + count)
            new += count
        else:
            _take(queues[room], rows, first, count)
        left = room - each * size
        if left:
            queues.setdefault(left, []).append((first, count))
    return rows, new


def _take(queue: list[tuple[int, int]], rows: Ints, first: int, count: int) -> None:
    """Move the rows at the front of a queue to places from `first` on."""
    while count:
        begin, there = queue[0]
        some = min(there, count)
        rows[first : first + some] = rows[begin : begin + some]
        first, count = first + some, count - some
        if some == there:
            queue.pop(0)
        else:
            queue[0] = (begin + some, there - some)
