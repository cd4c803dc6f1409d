"""Which source of tokens a dataset reads: sequences of its stream, or packed rows."""

from collections.abc import Sequence

from streaming_ext.batches.shard_source import ShardSource
from streaming_ext.batches.token_reader import TokenReader
from streaming_ext.errors import UsageError
from streaming_ext.packing.documents import Documents
from streaming_ext.packing.opening import open_plan
from streaming_ext.packing.packed_source import PackedSource
from streaming_ext.shards.cache import ShardCache

READINGS = ("maps", "files")


def source_of(
    caches: Sequence[ShardCache],
    *,
    packing: str | None,
    length: int,
    cache_limit: int | None,
    left_out: Sequence[Documents] | None = None,
    multiple: int | None = None,
    reading: str = "maps",
) -> ShardSource:
    """The source of some streams.

    Args:
        caches: of the streams.
        packing: None for sequences cut out of the stream.
        length: tokens a row.
        cache_limit: bytes that all caches together may hold.
        left_out: documents that no packed row holds, one table a stream.
        multiple: of tokens that each document takes in a packed row; 1 by default.
        reading: `maps`, or `files` that are read by position.

    Raises:
        UsageError: the streams do not fit together, or do not know their documents.
        CorruptDatasetError: what a dataset says of its documents is missing or damaged.
    """
    if reading not in READINGS:
        raise UsageError(
            f"`reading` must be {' or '.join(map(repr, READINGS))}, got {reading!r}: shards are "
            "mapped into memory, or read by position where that cannot be."
        )
    reader = TokenReader(caches, maps=reading == "maps")
    if packing is None:
        return ShardSource(reader, cache_limit=cache_limit)
    multiple = multiple or 1
    if length % multiple:
        raise UsageError(
            f"`sequence_length` must be a multiple of document_multiple={multiple}, got {length}."
        )
    plans = [
        open_plan(
            cache,
            length,
            left_out=None if left_out is None else left_out[stream],
            multiple=multiple,
            maps=reading == "maps",
        )
        for stream, cache in enumerate(caches)
    ]
    eot_id = caches[0].index.eot_id
    if eot_id is None:
        raise UsageError("packing= needs the id that ends a document, which the dataset says not.")
    return PackedSource(reader, plans, eot_id=eot_id, cache_limit=cache_limit, multiple=multiple)
