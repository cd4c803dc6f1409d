"""Units of text: what is tokenized at once, pieces of parts. Arithmetic on sizes alone.

A file of 5 bytes that can be entered anywhere, and two of 1 byte in one part, in units of 2 bytes:

    part 0: [0-1] [1-3] [3-5]        part 1: [file b, file c]

Neither the order nor a row depends on the size of units.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from streaming_ext.text.parts.cutting import cut_evenly
from streaming_ext.text.parts.part import Part, Piece
from streaming_ext.text.sources import SourceFile

LEAST: Final = 2**22  # bytes: calling the engine costs what 1 MiB does. A row needs its unit
MOST: Final = 2**26
_UNITS: Final = 2**13  # of all text about; each is a file of the cache


@dataclass(frozen=True, slots=True)
class Unit:
    """Some text of one part.

    Attributes:
        part: number of the part.
        pieces: in the order of its documents: a piece of one file, or whole files.
    """

    part: int
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        """What messages call it."""
        first = self.pieces[0]
        more = f" and {len(self.pieces) - 1} more" if len(self.pieces) > 1 else ""
        span = "" if first.span is None else f" [bytes {first.span[0]}-{first.span[1]}]"
        return f"{first.source.url}{span}{more}"


def unit_bytes_of(total: int) -> int:
    """How large a unit is, for so many bytes of text: a power of two."""
    wanted = max(1, total // _UNITS)
    return min(MOST, max(LEAST, 1 << (wanted - 1).bit_length()))


def units_of(
    parts: Sequence[Part], *, unit_bytes: int, may_be_cut: Collection[SourceFile]
) -> tuple[Unit, ...]:
    """The units of all parts, in their order.

    Args:
        parts: in order.
        unit_bytes: a unit has more only where a file cannot be cut.
        may_be_cut: the files of more bytes that can be entered in the middle.
    """
    return tuple(unit for part in parts for unit in _units(part, unit_bytes, may_be_cut))


def _units(part: Part, unit_bytes: int, may_be_cut: Collection[SourceFile]) -> Iterator[Unit]:
    together: list[Piece] = []
    for piece in part.pieces:
        if piece.source in may_be_cut and piece.size > unit_bytes:
            if together:
                yield Unit(part.number, tuple(together))
                together = []
            start = 0 if piece.span is None else piece.span[0]
            for begin, end in cut_evenly(piece.size, unit_bytes):
                yield Unit(part.number, (Piece(piece.source, (start + begin, start + end)),))
            continue
        together.append(piece)
        if sum(each.size for each in together) >= unit_bytes:
            yield Unit(part.number, tuple(together))
            together = []
    if together:
        yield Unit(part.number, tuple(together))
