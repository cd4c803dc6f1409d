"""What a format tells of the files that hold a split: names, sizes, index, and their token ids."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from streaming_ext.base.arrays import Ints
from streaming_ext.dataset.formats.shard_table import ShardTable
from streaming_ext.dataset.shard import Shard, TokenArray

Samples = TypeVar("Samples", int, Ints)  # of one shard, or of each


class ShardFormat(Protocol):
    """How the samples of a split lie in shards.

    It is made of `sequence_length` (tokens a sample), `dtype` (of one token id on disk),
    `shard_size` (upper bound of a raw shard in bytes) and `compression` (`none` or
    `codec[:level]`).
    """

    def require_possible(self) -> None:
        """Refuse a size of shards that this format cannot have; `UsageError` says what it can."""
        ...

    @property
    def samples_per_shard(self) -> int:
        """How many samples a full shard holds; `UsageError` where not even one fits."""
        ...

    def shard_names(self, split: str, part: int, number: int) -> tuple[str, ...]:
        """Names of a raw shard relative to its split's folder, PART/shard.NUMBER.FORMAT or alike.

        The first is given to it; the others older versions gave, and they are read.
        """
        ...

    def raw_size(self, num_samples: Samples) -> Samples:
        """Size of a raw shard of so many samples in bytes; of several, where there are several."""
        ...

    def tokens_of(self, raw: bytes | memoryview, num_samples: int) -> TokenArray:
        """The samples of a raw shard, of shape (num_samples, sequence_length).

        Raises:
            CorruptDatasetError: it is no such shard.
        """
        ...

    def index(self, shards: Iterable[Shard]) -> bytes:
        """The bytes of a split's `index.json`, of the shards of all parts in order."""
        ...

    def table(self, index: bytes, *, where: str) -> ShardTable:
        """The shards that an index of this format lists; `where` names it in messages.

        Raises:
            CorruptDatasetError: it is damaged.
        """
        ...
