"""Opening the datasets of a training: where each lies, its index, and whether they match."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.format.index import TokenIndex, read_index
from streaming_ext.order.settings import OrderSettings
from streaming_ext.reading.cache import ShardCache
from streaming_ext.store.remote import Remote
from streaming_ext.training.arguments import DataLocation
from streaming_ext.training.streams import TokenStream


def open_streams(order: OrderSettings, location: DataLocation) -> list[ShardCache]:
    """Read the index of every stream; of a text, make its dataset first.

    Raises:
        UsageError: a stream has no location, its cache is too small, or tokenizers differ.
    """
    limit = location.cache_limit
    limit_each = None if limit is None else limit // len(location.members)
    caches: list[ShardCache] = []
    for member in location.members:
        split = member.split or order.split
        stream = member.made(split=split, sequence_length=order.longest, limit=limit_each)
        url, local = _url_and_cache(stream)
        source = Remote(
            url=url,
            options=location.storage_options or {},
            retries=location.download_retry,
            timeout=location.download_timeout,
        )
        index = read_index(
            source, split, token_dtype=location.token_dtype, generation=stream.generation
        )
        largest = int(index.raw_sizes.max(initial=0))
        if limit_each is not None and limit_each < 4 * largest:
            raise UsageError(
                f"`cache_limit` leaves {limit_each} bytes to a stream whose largest shard has "
                f"{largest}. Give at least four times that for each stream, better the shuffle "
                "window of all canonical nodes."
            )
        caches.append(ShardCache(index, source, local=local, limit=limit_each))
    _require_one_tokenizer([cache.index for cache in caches])
    return caches


def require_a_sequence(caches: Sequence[ShardCache], sizes: Sequence[int], length: int) -> None:
    """Refuse sequences that are longer than all of a stream.

    Args:
        caches: of the streams.
        sizes: sequences of each.
        length: tokens per sequence.

    Raises:
        UsageError: names both lengths.
    """
    for cache, size in zip(caches, sizes, strict=True):
        tokens = int(cache.index.samples.sum()) * cache.index.sample_tokens
        if size == 0 and tokens < length:
            advice = "Lower it." if tokens else "Name another split."
            raise UsageError(
                f"`sequence_length` is {length:,} tokens, and split {cache.index.split!r} of "
                f"{cache.source.url} has {tokens:,}: less than one sequence. {advice}"
            )


def _url_and_cache(stream: TokenStream) -> tuple[str, Path | None]:
    """Where a stream is published, and its cache; None to read it in place."""
    local = None if stream.local is None else Path(stream.local)
    if stream.remote is None:
        if local is None:
            raise UsageError("A stream needs remote=, local= or both.")
        return str(local), None
    if local is None and Remote(url=stream.remote).path is None:
        raise UsageError(f"{stream.remote} is read through a cache: give local= a folder for it.")
    return stream.remote, local


def end_of_text(indexes: Sequence[TokenIndex], given: int | None) -> int | None:
    """The id that ends a document; None if neither the datasets nor the user say it.

    Args:
        indexes: of the streams.
        given: by the user, for datasets that do not say it.

    Raises:
        UsageError: a dataset says another one, or stores no such id.
    """
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
