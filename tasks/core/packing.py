"""Cutting a part's token stream into samples and shards: arithmetic only."""

from dataclasses import dataclass

from streaming_ext.format import ShardFormat


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSlice:
    """One shard's share of a token stream: tokens [start, end), then `padding` end-of-text ids."""

    start: int
    end: int
    padding: int
    samples: int


def cut(num_tokens: int, shard_format: ShardFormat) -> list[ShardSlice]:
    """Cut a stream of `num_tokens` tokens into full shards and a last one.

    Only the last sample is padded, up to `sequence_length`; no token is dropped.
    """
    length, per_shard = shard_format.sequence_length, shard_format.samples_per_shard
    num_samples = -(-num_tokens // length)
    slices = []
    for first in range(0, num_samples, per_shard):
        samples = min(per_shard, num_samples - first)
        start, full_end = first * length, (first + samples) * length
        end = min(full_end, num_tokens)
        slices.append(ShardSlice(start=start, end=end, padding=full_end - end, samples=samples))
    return slices
