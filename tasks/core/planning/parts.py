"""The parts of a run: its sources, with a look into the large ones whether they can be cut."""

from collections.abc import Sequence

from streaming_ext.text.parts.cutting import arrange
from streaming_ext.text.parts.looking import those_that_can_be_cut
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.config import ShardConfig


def parts_of(sources: Sequence[SourceFile], config: ShardConfig) -> tuple[Part, ...]:
    """What each chain of tasks makes: a function of the sources and the configuration alone.

    Raises:
        StorageError: a server refuses or does not answer.
    """
    part_size = int(config.part_size)
    return arrange(
        sources,
        part_size=part_size,
        min_part_size=int(config.min_part_size),
        may_be_cut=those_that_can_be_cut(sources, config.read_options, above=part_size),
    )
