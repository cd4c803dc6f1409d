"""A part, the unit of work in preparing, and how source files are cut into parts, by sizes alone.

Large files are cut evenly, small ones taken together in their order:

    sizes 5, 1, 1, 1, 12 with parts of 4 at most, 2 at least:
    [0-2] [2-5] of the first, the next two, the one after, [0-4] [4-8] [8-12] of the last
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streaming_ext.base.arrays import ceil_div
from streaming_ext.format.record import made_of_text
from streaming_ext.text.documents.files import Span
from streaming_ext.text.sources import SourceFile


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """A source file, or a span of it.

    Attributes:
        source: the file as it was listed.
        span: the bytes of the file in which its documents begin; None for the whole file.
    """

    source: SourceFile
    span: Span | None = None

    @property
    def size(self) -> int:
        """In bytes."""
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
        """In bytes of its spans."""
        return sum(source_span.size for source_span in self.spans)

    @property
    def remote(self) -> bool:
        """True if its bytes must be fetched."""
        return self.spans[0].source.remote

    @property
    def source(self) -> str:
        """For people: a URL, with the span or the number of further files."""
        return self._text(self.spans[0].source.url)

    def __str__(self) -> str:
        return f"{self.number:05} {self._text(self.spans[0].source.name)}"

    def _text(self, name: str) -> str:
        first = self.spans[0]
        return made_of_text(name, first.span, first.source.size, files=len(self.spans))


def sizes_of(parts: Sequence[Part]) -> list[int]:
    """Bytes of each part."""
    return [part.size for part in parts]


def cut_evenly(size: int, part_size: int) -> list[Span]:
    """The fewest spans of a file that are at most `part_size` bytes each, end to end."""
    count = ceil_div(size, part_size)
    return [(size * n // count, size * (n + 1) // count) for n in range(count)]


def arrange(
    sources: Sequence[SourceFile],
    *,
    part_size: int,
    min_part_size: int = 0,
    may_be_cut: Callable[[SourceFile], bool] = lambda source: False,
) -> tuple[Part, ...]:
    """The parts of a build, numbered, in the order of the sources.

    Args:
        sources: sorted.
        part_size: the size of a part in bytes; larger files are cut if they may be.
        min_part_size: the size in bytes up to which files are taken together.
        may_be_cut: a function that says whether a larger file can be entered in the middle.
    """
    found: list[list[SourceSpan]] = []
    together: list[SourceSpan] = []  # the last of them, if files may still be added
    for source in sources:
        held = sum(one.size for one in together)
        if source.size > part_size and may_be_cut(source):
            found += [[SourceSpan(source, span)] for span in cut_evenly(source.size, part_size)]
            together = []
            continue
        fits = together and together[0].source.remote == source.remote
        if not fits or held + source.size > part_size:
            together, held = [], 0
            found.append(together)
        together.append(SourceSpan(source))
        if held + source.size >= min_part_size:
            together = []
    return tuple(Part(number, tuple(spans)) for number, spans in enumerate(found))
