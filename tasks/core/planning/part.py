"""A part: what one chain of tasks makes, and the pieces of source files that it is made of."""

from dataclasses import dataclass

from streaming_ext.text.documents.source_format import Span
from streaming_ext.text.sources import SourceFile


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of one source file.

    Attributes:
        source: the file as it was listed.
        span: [start, end) in the unit of its format, rows or bytes; None for the whole file.
    """

    source: SourceFile
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part's number and its pieces, in the order of its documents; today one whole file."""

    number: int
    pieces: tuple[Piece, ...]

    @classmethod
    def whole(cls, number: int, source: SourceFile) -> "Part":
        """The part that is all of one file."""
        return cls(number, (Piece(source),))

    @property
    def source(self) -> SourceFile:
        """The file that the part is made of."""
        (piece,) = self.pieces
        return piece.source

    def __str__(self) -> str:
        return f"{self.number:05} {self.source.name}"
