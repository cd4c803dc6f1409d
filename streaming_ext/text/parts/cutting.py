"""Which spans of which files make a part: arithmetic on sizes alone.

Large files are cut evenly, small ones taken together in their order:

    sizes 5, 1, 1, 1, 12 with parts of 4 at most, 2 at least:
    [0-2] [2-5] of the first, the next two, the one after, [0-4] [4-8] [8-12] of the last
"""

from collections.abc import Collection, Sequence

from streaming_ext.text.documents.files import Span
from streaming_ext.text.parts.part import Part, SourceSpan
from streaming_ext.text.sources import SourceFile


def cut_evenly(size: int, part_size: int) -> list[Span]:
    """As few spans of a file as are at most `part_size` bytes each, end to end."""
    count = -(-size // part_size)
    return [(size * n // count, size * (n + 1) // count) for n in range(count)]


def arrange(
    sources: Sequence[SourceFile],
    *,
    part_size: int,
    min_part_size: int = 0,
    may_be_cut: Collection[SourceFile] = (),
) -> tuple[Part, ...]:
    """The parts of a run, numbered, in the order of the sources.

    Args:
        sources: sorted.
        part_size: files of more bytes are cut, where they may be.
        min_part_size: files are taken together until a part has so many bytes.
        may_be_cut: those larger ones that can be entered in the middle.
    """
    found: list[tuple[SourceSpan, ...]] = []
    together: list[SourceSpan] = []
    held = 0

    def close() -> None:
        nonlocal held
        if together:
            found.append(tuple(together))
        together.clear()
        held = 0

    for source in sources:
        if source.size > part_size and source in may_be_cut:
            close()
            found += [(SourceSpan(source, span),) for span in cut_evenly(source.size, part_size)]
            continue
        other_place = together and together[0].source.remote != source.remote
        if other_place or held + source.size > part_size:
            close()
        together.append(SourceSpan(source))
        held += source.size
        if held >= min_part_size:
            close()
    close()
    return tuple(Part(number, spans) for number, spans in enumerate(found))
