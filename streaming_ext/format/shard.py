"""One file of samples: its names, sizes and hashes; and the types of the ids that it holds.

The shards of a split as arrays: what an index tells, whatever its format.

What a format defines of the files of a split: names, sizes, index, and their token ids.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.format.schema import HASH

TokenDtype = Literal["uint16", "uint32"]
TokenArray = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

_HASH = re.compile(r"[0-9a-f]{32}")
_SHARD_NAME = re.compile(r"\d{5,}/(shard\.|(train|holdout)-\d{5,}-)\d{5,}\.[a-z0-9]+(\.[a-z0-9]+)?")


def is_shard_name(name: str) -> bool:
    """Whether a stored file has the name of a shard."""
    return _SHARD_NAME.fullmatch(name) is not None


def token_dtype(vocab_size: int) -> TokenDtype:
    """The narrowest type that holds every id of a vocabulary of `vocab_size` ids."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One shard of a split: names relative to the split's folder, sizes in bytes, content hashes.

    What lies on storage is the compressed file if there is one, else the raw one.
    """

    samples: int
    raw_name: str
    raw_bytes: int
    raw_hash: str
    zip_name: str | None = None
    zip_bytes: int | None = None
    zip_hash: str | None = None

    def __post_init__(self) -> None:
        packed = (self.zip_name, self.zip_bytes, self.zip_hash)
        if any(value is None for value in packed) != all(value is None for value in packed):
            raise CorruptDatasetError(f"{self.raw_name!r}: half a description of a packed file")
        for size, digest in ((self.raw_bytes, self.raw_hash), (self.zip_bytes, self.zip_hash)):
            if size is not None and size <= 0:
                raise CorruptDatasetError(f"{self.name!r}: a shard of {size} bytes")
            if digest is not None and not _HASH.fullmatch(digest):
                raise CorruptDatasetError(f"{self.name!r}: {digest!r} is no {HASH}")
        if self.samples < 1:
            raise CorruptDatasetError(f"{self.name!r}: a shard of {self.samples} samples")
        for name in (self.raw_name, self.zip_name):
            if name is not None and not is_shard_name(name):
                raise CorruptDatasetError(
                    f"{name!r} is no name of a shard: expected PART/shard.NUMBER.FORMAT"
                )

    @property
    def name(self) -> str:
        """Name of the stored file."""
        return self.zip_name or self.raw_name

    @property
    def codec(self) -> str | None:
        """How the stored file is compressed, None if it is raw."""
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
CROSSING_RUN: Final = 8  # shards a unit where sequences cross the border of shards


class Rewriting(Protocol):
    """Makes a shard that can be mapped of one whose ids do not lie back to back."""

    def __call__(self, raw: bytes, *, samples: int, where: str) -> bytes:
        """A raw shard anew; `CorruptDatasetError` if it contradicts itself."""
        ...


class HeadCheck(Protocol):
    """Checks what lies before the samples of a raw shard."""

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
        codecs: per shard, None if it is stored raw.
        sizes: bytes of each stored file: (shards,).
        raw_sizes: bytes of each raw shard: (shards,).
        hashes: XXH3-128 of each stored file, None if the index has none.
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
        """First sequence of each unit of the order, then their number; see `sequence_starts`."""
        return sequence_starts(self.token_starts, sequence_length)


def sequence_starts(starts: Ints, sequence_length: int) -> Ints:
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


Samples = TypeVar("Samples", int, Ints)  # of one shard, or of each


@dataclass(frozen=True, kw_only=True)
class ShardFormat(ABC):
    """How the samples of a split lie in shards: by default, ids end to end.

    Attributes:
        sequence_length: tokens a sample.
        dtype: type of one token id on disk.
        shard_size: upper bound of a raw shard in bytes, headers included.
        compression: `none` or `codec[:level]`.
    """

    sequence_length: int
    dtype: TokenDtype
    shard_size: int
    compression: str

    @property
    def id_type(self) -> np.dtype[Any]:
        """Type of one token id on disk, little-endian."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def sample_bytes(self) -> int:
        """Bytes of the ids of one sample."""
        return self.sequence_length * self.id_type.itemsize

    @abstractmethod
    def require_possible(self) -> None:
        """Refuse a size or compression of shards that this format cannot have.

        Raises:
            UsageError: says what it can have.
        """

    @property
    @abstractmethod
    def samples_per_shard(self) -> int:
        """How many samples a full shard holds; `UsageError` if not even one fits."""

    @abstractmethod
    def shard_name(self, split: str, part: int, number: int) -> str:
        """Name of a raw shard relative to its split's folder, such as PART/shard.NUMBER.FORMAT."""

    @abstractmethod
    def raw_size(self, num_samples: Samples) -> Samples:
        """Size of a raw shard of this many samples in bytes, or of each of several."""

    def header(self, num_samples: int) -> bytes:
        """The bytes of a raw shard before its samples."""
        return b""

    def content(self, raw: memoryview, *, prefix: str, first: int) -> bytes | memoryview:
        """The file of a shard.

        Args:
            raw: header and samples.
            prefix: of the names of its samples, if it has such.
            first: number of its first sample.
        """
        return raw

    @abstractmethod
    def tokens_of(self, raw: bytes | memoryview, num_samples: int) -> TokenArray:
        """The samples of a raw shard: (num_samples, sequence_length).

        Raises:
            CorruptDatasetError: it is no such shard.
        """

    @abstractmethod
    def index(self, shards: Iterable[Shard]) -> bytes:
        """The bytes of a split's `index.json`, for the shards of all parts in order."""

    @abstractmethod
    def table(self, index: bytes, *, where: str) -> ShardTable:
        """The shards that an index of this format lists; `where` names it in messages.

        Raises:
            CorruptDatasetError: it is damaged.
        """
