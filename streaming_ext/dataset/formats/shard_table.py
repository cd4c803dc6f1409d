"""The shards of a split as arrays: what an index tells, whatever its format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from streaming_ext.dataset.shard import Shard

Bytes = npt.NDArray[np.uint8]
CROSSING_RUN: Final = 8  # shards a unit where sequences cross the border of shards


class Rewriting(Protocol):
    """Makes a shard that can be mapped of one whose ids do not lie back to back."""

    def __call__(self, raw: bytes, *, samples: int, where: str) -> bytes:
        """A raw shard anew; `CorruptDatasetError` where it contradicts itself."""
        ...


class HeadCheck(Protocol):
    """Looks at what stands before the samples of a raw shard."""

    def __call__(self, raw: Bytes, *, samples: int, header: int, sample_bytes: int) -> str:
        """What is wrong with it, or nothing.

        Args:
            raw: the whole shard: (bytes,).
            samples: how many it should hold.
            header: bytes before the first of them.
            sample_bytes: of each.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ShardTable:
    """The shards of one split; the samples of each are its last bytes.

    Attributes:
        names: stored file of each shard, relative to the split's folder.
        raw_names: the shard's file when unpacked.
        codecs: per shard, None where it is stored raw.
        sizes: bytes of each stored file: (shards,).
        raw_sizes: bytes of each raw shard: (shards,).
        hashes: XXH3-128 of each stored file, None where the index has none.
        raw_hashes: the same of each raw shard.
        samples: samples of each shard: (shards,).
        sample_tokens: tokens a sample.
        dtype: type of one id on disk.
        unknown: what this set does not say of itself, in words.
        head_check: for formats whose shards say in their head what they hold.
        rewriting: how shards of others are rewritten; None where ids lie back to back.
        stored_raw_sizes: bytes of each shard as published, unpacked; `raw_sizes` are those of
            what is read here.
        stored_raw_hashes: XXH3-128 of the same.
    """

    names: list[str]
    raw_names: list[str]
    codecs: list[str | None]
    sizes: Ints
    raw_sizes: Ints
    hashes: list[str | None]
    raw_hashes: list[str | None]
    samples: Ints
    sample_tokens: int
    dtype: str
    unknown: tuple[str, ...] = ()
    head_check: HeadCheck | None = None
    rewriting: Rewriting | None = None
    stored_raw_sizes: Ints
    stored_raw_hashes: list[str | None]

    @classmethod
    def of_shards(cls, shards: Sequence[Shard], *, sample_tokens: int, dtype: str) -> Self:
        """The table of some shards, for a format whose index need not be read fast."""
        raw_sizes = np.array([shard.raw_bytes for shard in shards], np.int64)
        raw_hashes: list[str | None] = [shard.raw_hash for shard in shards]
        return cls(
            names=[shard.name for shard in shards],
            raw_names=[shard.raw_name for shard in shards],
            codecs=[shard.codec for shard in shards],
            sizes=np.array([shard.size for shard in shards], np.int64),
            raw_sizes=raw_sizes,
            hashes=[shard.hash for shard in shards],
            raw_hashes=raw_hashes,
            samples=np.array([shard.samples for shard in shards], np.int64),
            sample_tokens=sample_tokens,
            dtype=dtype,
            stored_raw_sizes=raw_sizes,
            stored_raw_hashes=raw_hashes,
        )

    @property
    def token_starts(self) -> Ints:
        """First token of each shard in the split's stream, then the end: (shards + 1,)."""
        return np.concatenate([[0], np.cumsum(self.samples * self.sample_tokens)])

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return self.sample_tokens * np.dtype(self.dtype).itemsize

    @property
    def headers(self) -> Ints:
        """Bytes of each raw shard before its first sample: (shards,)."""
        return self.raw_sizes - self.samples * self.sample_bytes

    def bounds(self, sequence_length: int) -> Ints:
        """First sequence of each unit of the order, then their number; see `units_of_order`."""
        return units_of_order(self.token_starts, sequence_length)


def units_of_order(starts: Ints, sequence_length: int) -> Ints:
    """First sequence of each unit of the order, then their number: (units + 1,).

    Sequence i holds the tokens [i L, (i + 1) L) of the split laid end to end; what is less than one
    sequence at the very end is left out. A sequence belongs to the unit in which it starts. A unit
    is one shard; where sequences cross the border of shards it is a run of them, so that a reader
    of some units needs few shards beyond its own.

    Args:
        starts: first token of each shard, then the end: (shards + 1,).
        sequence_length: L, in tokens.
    """
    step = 1 if not (starts[:-1] % sequence_length).any() else CROSSING_RUN
    edges = starts[:-1:step]
    count = int(starts[-1]) // sequence_length
    first = np.minimum(-(-edges // sequence_length), count)
    return np.concatenate([first, [count]])
