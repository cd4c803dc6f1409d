"""Which source of tokens a dataset reads: sequences of its stream, or packed rows."""

from collections.abc import Sequence

from streaming_ext.batches.shard_source import ShardSource
from streaming_ext.batches.token_reader import TokenReader
from streaming_ext.errors import UsageError
from streaming_ext.packing.documents import Documents
from streaming_ext.packing.opening import open_plan
from streaming_ext.packing.packed_source import PackedSource
from streaming_ext.shards.cache import ShardCache


def source_of(
    caches: Sequence[ShardCache],
    *,
    packing: str | None,
    length: int,
    cache_limit: int | None,
    left_out: Sequence[Documents] | None = None,
) -> ShardSource:
    """The source of some streams.

    Args:
        caches: of the streams.
        packing: None for sequences cut out of the stream.
        length: tokens a row.
        cache_limit: bytes that all caches together may hold.
        left_out: documents that no packed row holds, one table a stream.

    Raises:
        UsageError: the streams do not fit together, or do not know their documents.
        CorruptDatasetError: what a dataset says of its documents is missing or damaged.
    """
    reader = TokenReader(caches)
    if packing is None:
        return ShardSource(reader, cache_limit=cache_limit)
    plans = [
        open_plan(cache, length, left_out=None if left_out is None else left_out[stream])
        for stream, cache in enumerate(caches)
    ]
    eot_id = caches[0].index.eot_id
    if eot_id is None:
        raise UsageError("packing= needs the id that ends a document, which the dataset says not.")
    return PackedSource(reader, plans, eot_id=eot_id, cache_limit=cache_limit)
