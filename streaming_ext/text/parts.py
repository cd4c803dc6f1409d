"""Parts, the units of work in a build, and how source files are cut into them by sizes alone.

Large files are cut evenly; small files are put together in their order:

    sizes 5, 1, 1, 1, 12; part_size 4, min_part_size 2; the parts:
    [0-2] [2-5] of the first, the second and third, the fourth, [0-4] [4-8] [8-12] of the last
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
        span: the range of bytes in which its documents begin; None for the whole file.
    """

    source: SourceFile
    span: Span | None = None

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.source.size if self.span is None else self.span[1] - self.span[0]


@dataclass(frozen=True, slots=True)
class Part:
    """A numbered part, with its spans in the order of their documents.

    A part is one whole file, a span of a large file, or several whole files: all remote, or none.
    """

    number: int
    spans: tuple[SourceSpan, ...]

    @classmethod
    def whole(cls, number: int, source: SourceFile) -> "Part":
        """Make a part of one whole file."""
        return cls(number, (SourceSpan(source),))

    @property
    def size(self) -> int:
        """Total size of the spans in bytes."""
        return sum(source_span.size for source_span in self.spans)

    @property
    def remote(self) -> bool:
        """True if the bytes of the part must be fetched."""
        return self.spans[0].source.remote

    @property
    def source(self) -> str:
        """Description for display: a URL, with the span or the number of further files."""
        return self._text(self.spans[0].source.url)

    def __str__(self) -> str:
        return f"{self.number:05} {self._text(self.spans[0].source.name)}"

    def _text(self, name: str) -> str:
        first = self.spans[0]
        return made_of_text(name, first.span, first.source.size, files=len(self.spans))


def sizes_of(parts: Sequence[Part]) -> list[int]:
    """Return the size of each part in bytes."""
    return [part.size for part in parts]


def cut_evenly(size: int, part_size: int) -> list[Span]:
    """Cut a file into the fewest spans of at most `part_size` bytes each, end to end."""
    count = ceil_div(size, part_size)
    return [(size * n // count, size * (n + 1) // count) for n in range(count)]


def arrange(
    sources: Sequence[SourceFile],
    *,
    part_size: int,
    min_part_size: int = 0,
    may_be_cut: Callable[[SourceFile], bool] = lambda source: False,
) -> tuple[Part, ...]:
    """Arrange source files in numbered parts, in the order of the files.

    Args:
        sources: the source files, sorted.
        part_size: the size of a part in bytes; larger files are cut if they may be.
        min_part_size: the size in bytes up to which files are put together.
        may_be_cut: a function that returns whether a larger file can be read from the middle.
    """
    found: list[list[SourceSpan]] = []
    together: list[SourceSpan] = []  # the last part found, if files may still be added to it
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
