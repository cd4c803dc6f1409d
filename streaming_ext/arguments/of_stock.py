"""Arguments of mosaicml-streaming's dataset that have no meaning here, each with what to do."""

from collections.abc import Mapping
from typing import Any, Final

from streaming_ext.errors import UsageError
from streaming_ext.stock import streaming

_ANSWERS: Final = {
    "shuffle_algo": "there is one shuffle, of shards and of windows of `shuffle_block_size`. Leave "
    "it out.",
    "partition_algo": "a step holds the same sequences on any number of ranks, by "
    "`num_canonical_nodes` alone. Leave it out.",
    "sampling_method": "no sequence comes twice before all came once. Leave it out; `repeat`, "
    "`choose` or `proportion` of a TokenStream say how much of it an epoch holds.",
    "sampling_granularity": "no sequence comes twice before all came once. Leave it out.",
    "validate_hash": "every shard is compared with the hash that the dataset has of it. Leave it "
    "out.",
    "keep_zip": "compressed files are never kept in the cache, and never removed where they are "
    "published. Leave it out.",
    "allow_unsafe_types": "only token ids are read, nothing that could hold code. Leave it out.",
    "stream_name": "streams are given as TokenStream(...) in `streams`. Leave it out.",
    "stream_config": "streams are given as TokenStream(...) in `streams`. Leave it out.",
}


def refuse_stock(given: Mapping[str, Any]) -> None:
    """Answer arguments that this dataset has not.

    Raises:
        UsageError: one that stock StreamingDataset has.
        TypeError: any other.
    """
    for name in given:
        if name in _ANSWERS:
            raise UsageError(f"`{name}` is an argument of stock StreamingDataset: {_ANSWERS[name]}")
        raise TypeError(f"StreamingTokenDataset() got an unexpected keyword argument {name!r}")


def require_stock_world(ranks: int, *, replication: int | None) -> None:
    """Refuse a count that was multiplied with a number of ranks that is not the dataset's.

    Args:
        ranks: of the dataset.
        replication: consecutive ranks that read the same.

    Raises:
        UsageError: stock StreamingDataLoader sees others.
    """
    world = streaming.base.world.World.detect().num_ranks // (replication or 1)
    if world != ranks:
        raise UsageError(
            f"StreamingDataLoader sees {world} ranks in the environment, this dataset has "
            f"{ranks}. Launch with torchrun, or use StreamingTokenLoader."
        )
