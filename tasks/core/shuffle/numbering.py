"""The numbers of sources, as documents of a shuffled dataset name them: arithmetic on parts alone.

A file that was cut is one source, whatever its pieces:

    a.parquet [0-5] [5-9], b.parquet, c.parquet    are the sources 0, 0, 1, 2
"""

from collections.abc import Sequence

from streaming_ext.text.parts.part import Part


def source_numbers(parts: Sequence[Part]) -> list[list[int]]:
    """The number of the source of each piece, a list a part."""
    found: list[list[int]] = []
    number, last = -1, ("", -1)
    for part in parts:
        numbers = []
        for piece in part.pieces:
            begin, end = piece.span or (0, piece.source.size)
            number += not (begin and last == (piece.source.url, begin))
            last = (piece.source.url, end)
            numbers.append(number)
        found.append(numbers)
    return found


def first_sources(
    parts: Sequence[Part], first_part: int = 0, first_source: int = 0
) -> tuple[int, ...]:
    """The number of the source of each part's first piece.

    Args:
        parts: all of them.
        first_part: the first one that is made of sources; those before are there already.
        first_source: number of its first source.
    """
    found = source_numbers(parts[first_part:])
    return (0,) * first_part + tuple(first_source + numbers[0] for numbers in found)
