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

from streaming_ext.base.arrays import Flags, Ints

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

    Rows that have one room are taken in the order in which they came to have it, so the n-th that
    is taken is the n-th that came:

        move 1 puts two new rows at places 0 and 1, which have a room of 3 left
        move 2 takes one row with a room of 3 to place 2: that of place 0
        move 3 takes one row with a room of 3 to place 3: that of place 1

    Args:
        moves: of `best_fit`.
        length: tokens a row.

    Returns:
        the row of each place that moves take, one move after another: (sum of moves.rows,); and
        the number of rows.
    """
    count = int(moves.rows.sum())
    begun = moves.rooms == length
    left = moves.rooms - moves.times * moves.lengths
    came, came_first = _by_room(moves, left, left > 0, length)
    taken, taken_first = _by_room(moves, moves.rooms, ~begun, length)
    room = np.repeat(np.arange(length + 1), np.diff(taken_first))
    # The place that each place was taken from; of new rows themselves.
    before = np.arange(count)
    before[taken] = came[np.arange(len(taken)) + (came_first - taken_first)[room]]
    while not np.array_equal(further := before[before], before):
        before = further
    new = np.repeat(begun, moves.rows)
    number = np.cumsum(new) - 1
    return number[before], int(np.count_nonzero(new))


def _by_room(moves: Moves, rooms: Ints, chosen: Flags, length: int) -> tuple[Ints, Ints]:
    """The places of some moves, by a room of each and in their order; where each room begins."""
    order = np.argsort(rooms, kind="stable")
    order = order[chosen[order]]
    rows = moves.rows[order]
    firsts = (np.cumsum(moves.rows) - moves.rows)[order]
    behind = np.cumsum(rows)
    places = np.arange(rows.sum()) + np.repeat(firsts - behind + rows, rows)
    first = np.searchsorted(rooms[order], np.arange(length + 2))
    result: Ints = np.append(0, behind)[first]
    return places, result
