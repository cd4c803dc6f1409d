"""Opening the datasets of a run: where each lies, its index, and whether they fit together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.format.index import TokenIndex, read_index
from streaming_ext.reading.cache import ShardCache
from streaming_ext.store.remote import Remote
from streaming_ext.training.streams import TokenStream


def open_streams(
    streams: Sequence[TokenStream],
    *,
    split: str | None,
    limit: int | None,
    retries: int,
    timeout: float,
    options: Mapping[str, Any],
    token_dtype: str | None = None,
    sequence_length: int | None = None,
) -> list[ShardCache]:
    """Read the index of every stream; of a text, make its dataset first.

    Args:
        streams: the datasets.
        split: of those that name none.
        limit: bytes that all caches together may hold.
        retries: further attempts after a failure that may pass.
        timeout: seconds for one file.
        options: handed to fsspec.
        token_dtype: type of an id, where a set stores them as bytes.
        sequence_length: tokens of a row, the longest; None where the user named none.

    Raises:
        UsageError: a stream has no place, its cache is too small, or tokenizers differ.
    """
    limit_each = None if limit is None else limit // len(streams)
    caches: list[ShardCache] = []
    for given in streams:
        stream = given.made(
            split=given.split or split, sequence_length=sequence_length, limit=limit_each
        )
        url, local = _url_and_cache(stream)
        source = Remote(url=url, options=options, retries=retries, timeout=timeout)
        index = read_index(
            source, stream.split or split, token_dtype=token_dtype, generation=stream.generation
        )
        _require_room(index, limit_each)
        caches.append(ShardCache(index, source, local=local, limit=limit_each))
    _require_one_tokenizer([cache.index for cache in caches])
    return caches


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


def end_of_text(indexes: Sequence[TokenIndex], asked: int | None) -> int | None:
    """The id that ends a document; None where nobody says.

    Args:
        indexes: of the streams.
        asked: what the user says, for datasets that do not.

    Raises:
        UsageError: a dataset says another one, or stores no such id.
    """
    told = [index.eot_id for index in indexes if index.eot_id is not None]
    if asked is None:
        return told[0] if told else None
    if others := sorted({eot for eot in told if eot != asked}):
        raise UsageError(
            f"`eot_id` is {asked}, and the dataset says that {others[0]} ends its documents: masks "
            "would be wrong. Leave eot_id out."
        )
    for index in indexes:
        most = int(np.iinfo(index.dtype).max)
        if not 0 <= asked <= most:
            raise UsageError(
                f"`eot_id` is {asked}, and the ids of this dataset are {index.dtype}, 0 to "
                f"{most:,}: give the one that ends its documents."
            )
    return asked


def _require_room(index: TokenIndex, limit: int | None) -> None:
    largest = int(index.raw_sizes.max(initial=0))
    if limit is not None and limit < 4 * largest:
        raise UsageError(
            f"`cache_limit` leaves {limit} bytes to a stream whose largest shard has {largest}. "
            "Give at least four times that for each stream, better the shuffle window of all "
            "canonical nodes."
        )


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
