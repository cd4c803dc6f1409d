"""The source files of a run, looked into before any work, and the parts that they become."""

import heapq
import logging
from collections.abc import Sequence

from streaming_ext.base.errors import UsageError
from streaming_ext.format.manifest import NodePartition
from streaming_ext.format.schema import content_hash
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.formats import can_be_cut
from streaming_ext.text.listing import list_sources
from streaming_ext.text.look import look_into, shortened
from streaming_ext.text.options import PartOptions
from streaming_ext.text.parts import Part, SourceSpan, arrange, sizes_of
from streaming_ext.text.sources import SourceFile
from tasks.core.config import ShardConfig
from tasks.core.shard.extend_config import ExtendConfig

_log = logging.getLogger(__name__)


def balanced_groups(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Divide things into groups of about the same size, none of them empty if there are enough.

    The largest thing that is left goes to the smallest group, the first of those (longest
    processing time first: no group is larger than 4/3 of the best possible):

        sizes 50, 10, 10, 30, 20; 2 groups
        groups 0, 1 and 2, 3, 4, of 60 each

    Args:
        sizes: the sizes of the things, in bytes.
        count: the number of groups.

    Returns:
        The numbers of the things of each group, ascending.
    """
    groups: list[list[int]] = [[] for _ in range(count)]
    smallest = [(0, 0, number) for number in range(count)]
    for thing in sorted(range(len(sizes)), key=lambda thing: -sizes[thing]):
        size, length, number = smallest[0]
        groups[number].append(thing)
        heapq.heapreplace(smallest, (size + sizes[thing], length + 1, number))
    return [sorted(group) for group in groups]


def own_partition(
    parts: Sequence[Part], *, nodes: int | None, rank: int | None
) -> tuple[tuple[Part, ...], NodePartition | None]:
    """The parts of this node, and how it names its partition; all parts if there are no nodes.

    Raises:
        UsageError: there are fewer parts than nodes.
    """
    if nodes is None or rank is None:
        return tuple(parts), None
    if len(parts) < nodes:
        raise UsageError(
            f"{len(parts)} parts for {nodes} nodes: some would hold nothing. Lower --nodes, "
            "--min-part-size or --part-size, or cut the files into smaller ones."
        )
    listed = "\n".join(_line(part) for part in parts)
    partition = NodePartition(rank=rank, nodes=nodes, sources=content_hash(listed.encode()))
    numbers = balanced_groups(sizes_of(parts), nodes)[rank]
    return tuple(Part(own, parts[number].spans) for own, number in enumerate(numbers)), partition


def _line(part: Part) -> str:
    """A part in the list that all nodes must agree on."""

    def of(source_span: SourceSpan) -> str:
        source = source_span.source
        span = "" if source_span.span is None else f"\t{source_span.span[0]}-{source_span.span[1]}"
        return f"{source.url}\t{source.size}\t{source.pin}{span}"

    return "\t+\t".join(of(source_span) for source_span in part.spans)


def parts_of(
    sources: Sequence[SourceFile], sizes: PartOptions, options: ReadOptions
) -> tuple[Part, ...]:
    """The parts of some sources: a function of the sources and the configuration alone.

    Args:
        sources: the source files, in order.
        sizes: the sizes of parts.
        options: the text that is read of the sources.

    Raises:
        StorageError: a server refuses or does not answer.
    """
    return arrange(
        sources,
        part_size=int(sizes.part_size),
        min_part_size=int(sizes.min_part_size),
        may_be_cut=lambda source: can_be_cut(source, options),
    )


def find_sources(
    config: ShardConfig | ExtendConfig, options: ReadOptions, *, may_lack: bool = False
) -> tuple[SourceFile, ...]:
    """List the source files, and look into them for the columns that are read, before any work.

    Args:
        config: the configuration that names them.
        options: the text that is read of them.
        may_lack: all of them may lack columns.

    Raises:
        UsageError: nothing matches, or the files cannot be used; see `look_into`.
        StorageError: a server refuses or does not answer.
    """
    sources = list_sources(
        config.sources,
        max_files=config.max_files if isinstance(config, ShardConfig) else None,
        hub_config=config.hub_config,
        any_name=options.source_format is not None,
    )
    warn_of_doubtful(look_into(sources, options, may_lack=may_lack))
    return tuple(sources)


def warn_of_doubtful(files: Sequence[str]) -> None:
    """Tell people of files that may hold no text: each is left to its own part."""
    if files:
        count = f"{len(files):,} file{'s' if len(files) > 1 else ''}"
        _log.warning("%s may hold no such text:\n  %s", count, "\n  ".join(shortened(files)))
