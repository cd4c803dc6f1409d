"""The parts of a run: its sources, with a look into the large ones whether they can be cut."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.formats import format_of
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from tasks.core.config import ShardConfig
from tasks.core.planning.cutting import arrange
from tasks.core.planning.part import Part

_IO_THREADS = 8


def parts_of(sources: Sequence[SourceFile], config: ShardConfig) -> tuple[Part, ...]:
    """What each chain of tasks makes: a function of the sources and the configuration alone.

    Raises:
        StorageError: a server refuses or does not answer.
    """
    large = [source for source in sources if source.size > config.part_size]
    with ThreadPoolExecutor(_IO_THREADS) as threads:
        can = list(threads.map(lambda source: can_be_cut(source, config.read_options), large))
    return arrange(
        sources,
        part_size=int(config.part_size),
        min_part_size=int(config.min_part_size),
        may_be_cut={source for source, answer in zip(large, can, strict=True) if answer},
    )


def can_be_cut(source: SourceFile, options: ReadOptions) -> bool:
    """Whether a file can be entered in the middle; not, where it cannot be read at all."""
    try:
        return format_of(source.url, options).can_be_cut(SourceFileBytes(source))
    except SourceError:  # damaged or gone: said when its turn comes
        return False
