"""Functions that open streams, source, columns and plan, and check that these fit together.

This module imports a feature when its argument is given.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.format.index import TokenIndex, read_index
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.mixing import Mixing
from streaming_ext.order.ranks import DataRank, RankPosition
from streaming_ext.order.settings import OrderSettings
from streaming_ext.order.steps import StepSizes
from streaming_ext.order.streams import earlier_of
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.source import Sequences, TokenSource
from streaming_ext.store.remote import Remote
from streaming_ext.training.arguments import BatchContents, DataLocation, TokenStream
from streaming_ext.training.columns import COLUMNS, Column, StreamDomains
from streaming_ext.training.features.mixing import sequences_an_epoch

if TYPE_CHECKING:
    from streaming_ext.order.node_local import NodeGroup
    from streaming_ext.reading.chosen import ChosenDocuments
    from streaming_ext.training.features.context import ContextSlice
    from streaming_ext.training.features.domains import TokenDomains


def streams_of(location: DataLocation) -> list[TokenStream]:
    """Return the streams; there is usually one."""
    stream = TokenStream(remote=location.remote, local=location.local)
    if location.proportion_by is None or location.proportions is None:
        return list(location.streams or [stream])
    from streaming_ext.training.features.where import streams_by_value

    return streams_by_value(stream, location.proportion_by, location.proportions)


def open_streams(
    streams: Sequence[TokenStream], order: OrderSettings, location: DataLocation
) -> list[ShardCache]:
    """Read the index of every stream; the dataset of a text is made first.

    Raises:
        UsageError: a stream has no location, its cache is too small, or tokenizers differ.
    """
    limit, number = location.limit, len(streams)
    keys = []
    for member in streams:
        split = member.split or order.split
        limit_each = None if limit is None else limit // number
        stream = member.made(split=split, sequence_length=order.longest, limit=limit_each)
        keys.append((*_url_and_cache(stream), split, stream.generation))
    opened = {  # streams of one dataset share its cache
        key: _open_cache(location, *key, limit=None if limit is None else limit * count // number)
        for key, count in Counter(keys).items()
    }
    _require_one_tokenizer([cache.index for cache in opened.values()])
    return [opened[key] for key in keys]


def _open_cache(
    location: DataLocation,
    url: str,
    local: Path | None,
    split: str | None,
    generation: str | None,
    *,
    limit: int | None,
) -> ShardCache:
    source = Remote(
        url=url,
        options=location.storage_options or {},
        retries=location.download_retry,
        timeout=location.download_timeout,
    )
    index = read_index(source, split, token_dtype=location.token_dtype, generation=generation)
    largest = int(index.raw_sizes.max(initial=0))
    if limit is not None and limit < 4 * largest:
        raise UsageError(
            f"`cache_limit` leaves {limit} bytes to a stream whose largest shard has "
            f"{largest}. Give at least four times that for each stream, better the shuffle "
            "window of all canonical nodes."
        )
    return ShardCache(index, source, local=local, limit=limit)


def open_source(
    caches: Sequence[ShardCache],
    streams: Sequence[TokenStream],
    order: OrderSettings,
    length: int,
) -> TokenSource:
    """Open the source of the rows: sequences of the streams, or sources that wrap them.

    Args:
        caches: the caches of the streams.
        streams: the streams.
        order: the settings of the order.
        length: tokens of the longest rows.

    Raises:
        UsageError: the streams do not fit together or do not know their documents, the table of
            excluded documents does not fit them, a condition chooses no document, or a row is
            longer than a stream.
        CorruptDatasetError: the lists of documents of a dataset are missing or damaged.
    """
    sequences = Sequences(
        caches, length, [_chosen(*each) for each in zip(caches, streams, strict=True)]
    )
    source: TokenSource = sequences
    if order.exclude is not None:
        from streaming_ext.training.features.exclusions import Excluding

        source = Excluding(source, order.exclude)
    if order.packing is not None:
        from streaming_ext.training.features.packing import Packed

        source = Packed(source, multiple=order.document_multiple)
    for cache, stream, bounds, tokens in zip(
        caches, streams, source.bounds, sequences.tokens, strict=True
    ):
        if bounds[-1] == 0 and tokens < length:
            url = cache.source.url if stream.where is None else stream.name
            advice = "Lower it." if tokens else "Name another split."
            raise UsageError(
                f"`sequence_length` is {length:,} tokens, and split {cache.index.split!r} of "
                f"{url} has {tokens:,}: less than one sequence. {advice}"
            )
    return source


def _chosen(cache: ShardCache, stream: TokenStream) -> "ChosenDocuments | None":
    """Open the chosen documents of a stream; None stands for all."""
    if stream.where is None:
        return None
    from streaming_ext.training.features.where import open_chosen

    return open_chosen(cache, stream.where)


def fingerprints_of(source: TokenSource, nodes: "NodeGroup | None") -> tuple[str, ...]:
    """Return the identity of each stream's data, or of all partitions, as a state names it."""
    if nodes is not None:
        return (nodes.fingerprint,)
    return tuple(
        cache.index.index_hash + (f" where {chosen.digest}" if chosen else "")
        for cache, chosen in zip(source.reader.caches, source.chosen, strict=True)
    )


def open_domains(
    caches: Sequence[ShardCache], streams: Sequence[TokenStream], by: str | None
) -> "StreamDomains | TokenDomains":
    """Open the column of domains: of tokens if `by` is given, else of streams."""
    if by is None:
        return StreamDomains([stream.domain_name for stream in streams])
    from streaming_ext.training.features import domains

    return domains.open_domains(caches, by)


def open_columns(order: OrderSettings, contents: BatchContents, domains: Column) -> list[Column]:
    """Make the columns of a batch, in their order."""
    columns = [
        domains if kind is StreamDomains else kind()
        for name, kind in COLUMNS.items()
        if name in contents.extras
    ]
    if order.max_repeated_ngram is not None:
        from streaming_ext.training.features.repeats import RepeatFilter

        columns.insert(0, RepeatFilter(order.max_repeated_ngram))
    return columns


def identity_of(
    order: dict[str, Any], parts: Iterable[TokenSource | Column | Mixing]
) -> dict[str, Any]:
    """Return every setting that decides which sequence comes when, as a state names them.

    Args:
        order: the identity of the order.
        parts: sources, columns and mixtures, each of which names its own settings.
    """
    for part in parts:
        order = order | part.identity()
    return {name: value for name, value in order.items() if value is not None}


def open_context(
    position: RankPosition, order: OrderSettings, steps: StepSizes
) -> "ContextSlice | None":
    """Return the part of each row that this rank reads; None stands for all of it."""
    if not position.divides_rows:
        return None
    from streaming_ext.training.features.context import context_slice

    lengths = [length for _, _, length in steps.entries()]
    return context_slice(position, lengths=lengths, multiple=order.document_multiple)


def open_nodes(
    source: TokenSource, position: RankPosition, rank: DataRank, settings: dict[str, Any]
) -> "NodeGroup | None":
    """Find the partitions of all nodes, if each node reads its own; see `find_node_group`."""
    indexes = [cache.index for cache in source.reader.caches]
    partitioned = any(each.manifest and each.manifest.node_partition for each in indexes)
    if not (partitioned if position.node_local is None else position.node_local):
        return None
    if any(source.chosen):
        raise UsageError(
            "Partitions of nodes are read as they are: leave out where=, or pass node_local=False."
        )
    from streaming_ext.order.node_local import find_node_group

    sequences = source.sizes[0]
    return find_node_group(indexes, position, rank=rank, sequences=sequences, settings=settings)


def open_plan(
    source: TokenSource,
    order: OrderSettings,
    steps: StepSizes,
    rank: DataRank,
    streams: Sequence[TokenStream],
    *,
    mixing: Mixing | None,
    nodes: "NodeGroup | None",
) -> EpochPlan:
    """Plan the sequences of every step.

    Args:
        source: the source of the rows.
        order: the settings of the order.
        steps: the sizes of the steps.
        rank: the data-parallel rank.
        streams: the streams, with their parts of an epoch.
        mixing: the proportions that change during training.
        nodes: the partitions of all nodes.

    Raises:
        UsageError: there is nothing to read, or less than a step needs.
    """
    bounds, left_out, drop_last = source.bounds, source.left_out, order.drops_last
    if nodes is not None:
        from streaming_ext.order.node_local import NodePlan

        return NodePlan(
            order.spec,
            bounds=bounds,
            left_out=left_out,
            steps=steps,
            drop_last=drop_last,
            group=nodes,
        )
    indexes = [cache.index for cache in source.reader.caches]
    return EpochPlan(
        order.spec,
        bounds=bounds,
        left_out=left_out,
        steps=steps,
        drop_last=drop_last,
        choose=sequences_an_epoch(streams, source.sizes, epoch_size=order.epoch_sequences),
        rank=rank,
        method=order.batching_method,
        mixing=mixing,
        earlier=earlier_of(
            indexes, steps.longest, plain=not (source.identity() or any(source.chosen))
        ),
    )


def _url_and_cache(stream: TokenStream) -> tuple[str, Path | None]:
    """Return the location of a stream, and its cache; None to read it in place."""
    local = None if stream.local is None else Path(stream.local)
    if stream.remote is None:
        if local is None:
            raise UsageError("A stream needs remote=, local= or both.")
        return str(local), None
    if local is None and Remote(url=stream.remote).path is None:
        raise UsageError(f"{stream.remote} is read through a cache: give local= a folder for it.")
    return stream.remote, local


def end_of_text(caches: Sequence[ShardCache], given: int | None) -> int | None:
    """Return the id that ends a document; None if neither the datasets nor the user name it.

    Args:
        caches: the caches of the streams.
        given: the id that the user names, for datasets that do not name it.

    Raises:
        UsageError: a dataset names another id, or cannot store this one.
    """
    indexes = [cache.index for cache in caches]
    known = [index.eot_id for index in indexes if index.eot_id is not None]
    if given is None:
        return known[0] if known else None
    if others := sorted({eot for eot in known if eot != given}):
        raise UsageError(
            f"`eot_id` is {given}, and the dataset says that {others[0]} ends its documents: masks "
            "would be wrong. Leave eot_id out."
        )
    for index in indexes:
        most = int(np.iinfo(index.dtype).max)
        if not 0 <= given <= most:
            raise UsageError(
                f"`eot_id` is {given}, and the ids of this dataset are {index.dtype}, 0 to "
                f"{most:,}: give the one that ends its documents."
            )
    return given


def _require_one_tokenizer(indexes: list[TokenIndex]) -> None:
    """Refuse streams whose ids mean different tokens."""
    found = {
        index.tokenizer.fingerprint: index.tokenizer.name
        for index in indexes
        if index.tokenizer is not None
    }
    if len(found) > 1:
        raise UsageError(
            "The streams were made with different tokenizers: "
            + ", ".join(f"{name} ({print_})" for print_, name in found.items())
            + ". Their ids mean different tokens: prepare them with one."
        )
