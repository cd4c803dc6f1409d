"""A shard as a record describes it, and a table of the shards of a split as arrays."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from streaming_ext.base.arrays import Ints, ceil_div
from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.format.compression import decompress
from streaming_ext.format.schema import Hash, Value, content_hash, require_all

TokenDtype = Literal["uint16", "uint32"]
TokenArray = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

_NAME = r"\d{5,}/(shard\.|(train|holdout)-\d{5,}-)\d{5,}\.[a-z0-9]+(\.[a-z0-9]+)?"
ShardName = Annotated[str, Field(pattern=f"^{_NAME}$")]
Positive = Annotated[int, Field(gt=0)]


def is_shard_name(name: str) -> bool:
    """Return whether a stored file has the name of a shard."""
    return re.fullmatch(_NAME, name) is not None


def token_dtype(vocab_size: int) -> TokenDtype:
    """Return the narrowest type that holds every id of a vocabulary of `vocab_size` ids."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


class Shard(Value):
    """One shard of a split: names relative to the split's folder, sizes in bytes, content hashes.

    The stored file is the compressed one if there is one, else the raw one.
    """

    samples: Positive
    raw_name: ShardName
    raw_bytes: Positive
    raw_hash: Hash
    zip_name: ShardName | None = None
    zip_bytes: Positive | None = None
    zip_hash: Hash | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        packed = [each is not None for each in (self.zip_name, self.zip_bytes, self.zip_hash)]
        require_all({"zip_name, zip_bytes, zip_hash": all(packed) or not any(packed)})
        return self

    @property
    def name(self) -> str:
        """Name of the stored file."""
        return self.zip_name or self.raw_name

    @property
    def codec(self) -> str | None:
        """Codec of the stored file; None if it is raw."""
        return None if self.zip_name is None else self.zip_name.rpartition(".")[2]

    @property
    def size(self) -> int:
        """Size of the stored file in bytes."""
        return self.raw_bytes if self.zip_bytes is None else self.zip_bytes

    @property
    def hash(self) -> str:
        """Content hash of the stored file."""
        return self.raw_hash if self.zip_hash is None else self.zip_hash


Bytes = npt.NDArray[np.uint8]
CROSSING_RUN: Final = 8  # shards per group, if sequences cross from one shard to the next


# Rewrites a shard, whose ids do not lie end to end, as its ids alone. Arguments: the raw shard, the
# number of its samples, its name.
Rewriting = Callable[[bytes, int, str], bytes]
# Names the fault before the samples of a raw shard; empty for none. Arguments: the raw shard
# (bytes,), the number of its samples, the bytes before the first sample, the bytes per sample.
HeadCheck = Callable[[Bytes, int, int, int], str]


def difference(data: bytes | memoryview, size: int, digest: str | None) -> str:
    """Name the difference between some bytes and the size and hash in the index; empty for none."""
    if len(data) != size:
        # Fetching stops one byte after the size.
        got = "more" if len(data) > size else str(len(data))
        return f"{got} bytes, the index says {size}"
    if digest is not None and (found := content_hash(data)) != digest:
        return f"XXH3-128 {found}, the index says {digest}"
    return ""


@dataclass(frozen=True, kw_only=True)
class ShardTable:
    """The shards of one split; each shard ends with its samples.

    Attributes:
        names: stored file of each shard, relative to the split's folder.
        raw_names: file of each shard when it is unpacked.
        codecs: codec of each shard, None if it is stored raw.
        sizes: bytes of each stored file: (shards,).
        hashes: XXH3-128 of each stored file, None if the index has none.
        unpacked_sizes: bytes of each unpacked shard: (shards,).
        unpacked_hashes: XXH3-128 of each unpacked shard, None if the index has none.
        samples: number of samples of each shard: (shards,).
        sample_tokens: tokens per sample.
        dtype: type of one id on disk.
        unknown: the facts that this set does not state about itself, in words.
        head_check: a check of the head of a shard, for formats whose shards have one.
        rewriting: the conversion of shards whose ids do not lie end to end; None if they do.
    """

    names: list[str]
    raw_names: list[str]
    codecs: list[str | None]
    sizes: Ints
    hashes: list[str | None]
    unpacked_sizes: Ints
    unpacked_hashes: list[str | None]
    samples: Ints
    sample_tokens: int
    dtype: str
    unknown: tuple[str, ...] = ()
    head_check: HeadCheck | None = None
    rewriting: Rewriting | None = None

    @classmethod
    def of_shards(cls, shards: Sequence[Shard], *, sample_tokens: int, dtype: str) -> Self:
        """Return the table of some shards, for a format whose index need not be read fast."""
        return cls(
            names=[shard.name for shard in shards],
            raw_names=[shard.raw_name for shard in shards],
            codecs=[shard.codec for shard in shards],
            sizes=np.array([shard.size for shard in shards], np.int64),
            hashes=[shard.hash for shard in shards],
            unpacked_sizes=np.array([shard.raw_bytes for shard in shards], np.int64),
            unpacked_hashes=[shard.raw_hash for shard in shards],
            samples=np.array([shard.samples for shard in shards], np.int64),
            sample_tokens=sample_tokens,
            dtype=dtype,
        )

    @property
    def raw_sizes(self) -> Ints:
        """Bytes of each shard as it is read: unpacked, and rewritten if needed: (shards,)."""
        return self.unpacked_sizes if self.rewriting is None else self.samples * self.sample_bytes

    def unpacked(self, shard: int, data: bytes, *, where: str) -> bytes:
        """Unpack a stored file, and rewrite it if needed.

        Raises:
            CorruptDatasetError: the shard is not the one that the index describes; `where` names
                it.
        """
        if (codec := self.codecs[shard]) is not None:
            data = decompress(data, codec=codec, raw_size=int(self.unpacked_sizes[shard]))
            if cause := difference(data, len(data), self.unpacked_hashes[shard]):
                raise CorruptDatasetError(cause)
        if self.rewriting is None:
            return data
        data = self.rewriting(data, int(self.samples[shard]), where)
        if len(data) != self.raw_sizes[shard]:
            raise CorruptDatasetError(
                f"its samples have not the {self.sample_tokens} {self.dtype} ids of those of the "
                "first shard; only sets whose samples have one length are read"
            )
        return data

    def fault_of(self, shard: int, raw: Bytes, *, hashed: bool = True) -> str:
        """Name the fault of an unpacked and rewritten shard; empty for none.

        Args:
            shard: the number of the shard.
            raw: the whole shard: (bytes,).
            hashed: True to check more than the size.
        """
        size = int(self.raw_sizes[shard])
        if self.rewriting is not None or not hashed:
            return difference(raw.data, size, None)
        cause = difference(raw.data, size, self.unpacked_hashes[shard])
        if cause or self.head_check is None:
            return cause
        samples, header = int(self.samples[shard]), int(self.headers[shard])
        return self.head_check(raw, samples, header, self.sample_bytes)

    @property
    def token_starts(self) -> Ints:
        """Index of each shard's first token in the split's stream, then the end: (shards + 1,)."""
        return np.concatenate([[0], np.cumsum(self.samples * self.sample_tokens)])

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return self.sample_tokens * np.dtype(self.dtype).itemsize

    @property
    def headers(self) -> Ints:
        """Number of bytes of each raw shard before its first sample: (shards,)."""
        return self.raw_sizes - self.samples * self.sample_bytes


def sequence_starts(starts: Ints, sequence_length: int) -> Ints:
    """Return the first sequence of each group of shards, then the total: (groups + 1,).

    Sequence i holds the tokens [i L, (i + 1) L) of the split's shards, laid end to end; tokens at
    the very end that do not fill a sequence are left out. A sequence belongs to the group in which
    it starts. A group is one shard, or CROSSING_RUN shards if sequences cross from one shard to the
    next, so that a reader of some groups needs few further shards.

    Args:
        starts: index of each shard's first token, then the end: (shards + 1,).
        sequence_length: L, in tokens.
    """
    step = 1 if not (starts[:-1] % sequence_length).any() else CROSSING_RUN
    edges = starts[:-1:step]
    count = int(starts[-1]) // sequence_length
    first = np.minimum(ceil_div(edges, sequence_length), count)
    return np.concatenate([first, [count]])
