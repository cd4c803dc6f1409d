"""The older generations of a dataset, as far as training that stood in them can go on."""

from collections.abc import Sequence

from streaming_ext.dataset.formats.shard_table import units_of_order
from streaming_ext.dataset.index import TokenIndex
from streaming_ext.sampler.grown.grown_pass import Earlier


def earlier_of(indexes: Sequence[TokenIndex], length: int, *, plain: bool) -> list[Earlier]:
    """The older generations of the one stream; none of several streams, or of rows that are packed.

    Each index counts once, and that of the newest generation not at all.

    Args:
        indexes: of the streams.
        length: tokens of a sequence.
        plain: whether sequences are cut out of the stream, and none is left out.
    """
    if len(indexes) > 1 or not plain or indexes[0].manifest is None:
        return []
    index, manifest = indexes[0], indexes[0].manifest
    # An extension may leave a split as it was: then the generation before is no older one of it.
    shards = {
        summary.index.xxh128: summary.shards
        for each in manifest.generations
        for split, summary in each.splits.items()
        if split == index.split and summary.index.xxh128 != index.index_hash
    }
    return [
        Earlier(
            fingerprint=fingerprint,
            bounds=units_of_order(index.token_starts[: count + 1], length),
        )
        for fingerprint, count in shards.items()
    ]
