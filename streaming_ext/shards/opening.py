"""Opening the datasets of a run: where each lies, its index, and whether they fit together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streaming_ext.dataset.index import TokenIndex, read_index
from streaming_ext.errors import UsageError
from streaming_ext.shards.cache import ShardCache
from streaming_ext.shards.remote import Remote
from streaming_ext.streams import TokenStream


def open_streams(
    streams: Sequence[TokenStream],
    *,
    split: str | None,
    limit: int | None,
    retries: int,
    timeout: float,
    options: Mapping[str, Any],
    token_dtype: str | None = None,
) -> list[ShardCache]:
    """Read the index of every stream.

    Args:
        streams: the datasets.
        split: of those that name none.
        limit: bytes that all caches together may hold.
        retries: further attempts after a failure that may pass.
        timeout: seconds for one file.
        options: handed to fsspec.
        token_dtype: type of an id, where a set stores them as bytes.

    Raises:
        UsageError: a stream has no place, its cache is too small, or tokenizers differ.
    """
    share = None if limit is None else limit // len(streams)
    caches = []
    for stream in streams:
        url, local = _places(stream)
        source = Remote(url=url, options=options, retries=retries, timeout=timeout)
        index = read_index(source, stream.split or split, token_dtype=token_dtype)
        _require_room(index, share)
        caches.append(ShardCache(index, source, local=local, limit=share))
    _require_one_tokenizer([cache.index for cache in caches])
    return caches


def _places(stream: TokenStream) -> tuple[str, Path | None]:
    """Where a stream is published, and its cache; None to read it in place."""
    local = None if stream.local is None else Path(stream.local)
    if stream.remote is None:
        if local is None:
            raise UsageError("A stream needs remote=, local= or both.")
        return str(local), None
    if local is None and Remote(url=stream.remote).path is None:
        raise UsageError(f"{stream.remote} is read through a cache: give local= a folder for it.")
    return stream.remote, local


def _require_room(index: TokenIndex, limit: int | None) -> None:
    largest = int(index.raw_sizes.max(initial=0))
    if limit is not None and limit < 4 * largest:
        raise UsageError(
            f"`cache_limit` leaves {limit} bytes to a stream whose largest shard has {largest}. "
            "Give at least four times that for each stream, better the shuffle window of all "
            "lanes."
        )


def _require_one_tokenizer(indexes: list[TokenIndex]) -> None:
    """Refuse streams whose ids mean different tokens."""
    found = {
        index.manifest.spec.tokenizer.fingerprint: index.manifest.spec.tokenizer.name
        for index in indexes
        if index.manifest is not None
    }
    if len(found) > 1:
        raise UsageError(
            "The streams were made with different tokenizers: "
            + ", ".join(f"{name} ({print_})" for print_, name in found.items())
            + ". Their ids mean different tokens: prepare them with one."
        )
