"""Which source files can be entered in the middle."""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from streaming_ext.base.errors import SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.formats import format_of
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.source_bytes import SourceFileBytes

_IO_THREADS = 8


def those_that_can_be_cut(
    sources: Sequence[SourceFile], options: ReadOptions, *, above: int
) -> Collection[SourceFile]:
    """Those of more than `above` bytes that can be entered in the middle; a look into each.

    Raises:
        StorageError: a server refuses or does not answer.
    """
    large = [source for source in sources if source.size > above]
    with ThreadPoolExecutor(_IO_THREADS) as threads:
        can = list(threads.map(lambda source: can_be_cut(source, options), large))
    return {source for source, answer in zip(large, can, strict=True) if answer}


def can_be_cut(source: SourceFile, options: ReadOptions) -> bool:
    """Whether a file can be entered in the middle; not, where it cannot be read at all."""
    try:
        return format_of(source.url, options).can_be_cut(SourceFileBytes(source))
    except SourceError:  # damaged or gone: said when its turn comes
        return False
