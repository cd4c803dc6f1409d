"""The source files of a run, looked into before any work."""

import heapq
from collections.abc import Sequence

from streaming_ext.base.errors import UsageError
from streaming_ext.format.manifest import NodePartition
from streaming_ext.format.schema import content_hash
from streaming_ext.text.formats import can_be_cut
from streaming_ext.text.listing import list_sources
from streaming_ext.text.look import look_into
from streaming_ext.text.parts import Part, SourceSpan, arrange, sizes_of
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.datasets import require_apart
from tasks.core.config import ShardConfig
from tasks.core.shard.extend_config import ExtendRunConfig
from tasks.core.shard.import_config import list_token_files


def deal(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Deal things out into groups of about the same size, none of them empty if there are enough.

    The largest thing that is left goes to the smallest group, the first of those (longest
    processing time first: no group is larger than 4/3 of the best possible).

    Args:
        sizes: of the things, in bytes.
        count: of groups.

    Returns:
        the numbers of the things of each group, ascending.
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
    numbers = deal(sizes_of(parts), nodes)[rank]
    return tuple(Part(own, parts[number].spans) for own, number in enumerate(numbers)), partition


def _line(part: Part) -> str:
    """A part in the list that all nodes must agree on."""

    def of(source_span: SourceSpan) -> str:
        source = source_span.source
        span = "" if source_span.span is None else f"\t{source_span.span[0]}-{source_span.span[1]}"
        return f"{source.url}\t{source.size}\t{source.pin}{span}"

    return "\t+\t".join(of(source_span) for source_span in part.spans)


def parts_of(sources: Sequence[SourceFile], config: ShardConfig) -> tuple[Part, ...]:
    """What each chain of tasks makes: a function of the sources and the configuration alone.

    Raises:
        StorageError: a server refuses or does not answer.
    """
    return arrange(
        sources,
        part_size=int(config.part_size),
        min_part_size=int(config.min_part_size),
        may_be_cut=lambda source: can_be_cut(source, config.read_options),
    )


def check_sources(config: ShardConfig, *, writes: bool = True) -> tuple[SourceFile, ...]:
    """List the sources and look into them for the columns that are read, before any work.

    Args:
        config: of the run.
        writes: whether the output is written, which its own sources must not contain.

    Raises:
        UsageError: nothing matches, or the files cannot be used; see `look_into`.
        StorageError: a server refuses or does not answer.
    """
    return look_into_sources(config, writes=writes)[0]


def look_into_sources(
    config: ShardConfig, *, writes: bool = True
) -> tuple[tuple[SourceFile, ...], tuple[str, ...]]:
    """All sources, and what is wrong with those that have no such text column.

    Raises:
        UsageError: nothing matches, or the files cannot be used; see `look_into`.
        StorageError: a server refuses or does not answer.
    """
    options = config.read_options
    if writes:
        require_apart(config.output, config.sources)
    sources = (
        list_sources(
            config.sources,
            max_files=config.max_files,
            hub_config=config.hub_config,
            any_name=options.source_format is not None,
        )
        if options.ids is None
        else list_token_files(config.sources, options.ids)
    )

    # an extension has its columns of the dataset, whose files have them
    wrong = look_into(sources, options, may_lack=isinstance(config, ExtendRunConfig))
    return tuple(sources), wrong
