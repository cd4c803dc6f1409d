"""A part: what one chain of tasks makes, and the spans of source files that it is made of."""

from collections.abc import Sequence
from dataclasses import dataclass

from streaming_ext.format.record import made_of_text
from streaming_ext.text.documents.files import Span
from streaming_ext.text.sources import SourceFile


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """Some of one source file.

    Attributes:
        source: the file as it was listed.
        span: what begins in these bytes of it; None for the whole file.
    """

    source: SourceFile
    span: Span | None = None

    @property
    def size(self) -> int:
        """Of the span, in bytes."""
        return self.source.size if self.span is None else self.span[1] - self.span[0]


@dataclass(frozen=True, slots=True)
class Part:
    """A part's number and its spans, in the order of its documents.

    It is one whole file, a span of a large one, or several whole files: all remote, or none.
    """

    number: int
    spans: tuple[SourceSpan, ...]

    @classmethod
    def whole(cls, number: int, source: SourceFile) -> "Part":
        """The part that is all of one file."""
        return cls(number, (SourceSpan(source),))

    @property
    def size(self) -> int:
        """Of its spans, in bytes."""
        return sum(source_span.size for source_span in self.spans)

    @property
    def remote(self) -> bool:
        """Whether its bytes must be fetched."""
        return self.spans[0].source.remote

    @property
    def source(self) -> str:
        """What it is made of, for people: a URL, with what of it or how many more."""
        return self._told(self.spans[0].source.url)

    def __str__(self) -> str:
        return f"{self.number:05} {self._told(self.spans[0].source.name)}"

    def _told(self, name: str) -> str:
        first = self.spans[0]
        return made_of_text(name, first.span, first.source.size, files=len(self.spans))


def sizes_of(parts: Sequence[Part]) -> list[int]:
    """Bytes of each part."""
    return [part.size for part in parts]
