"""One file of samples: its names, sizes and hashes; and the types of the ids that it holds."""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.hashing import HASH
from streaming_ext.errors import CorruptDatasetError

TokenDtype = Literal["uint16", "uint32"]
TokenArray = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

_HASH = re.compile(r"[0-9a-f]{32}")
_SHARD_NAME = re.compile(r"\d{5,}/(shard\.|(train|holdout)-\d{5,}-)\d{5,}\.[a-z0-9]+(\.[a-z0-9]+)?")


def is_shard_name(name: str) -> bool:
    """Whether a stored file is named as shards here are."""
    return _SHARD_NAME.fullmatch(name) is not None


def token_dtype(vocab_size: int) -> TokenDtype:
    """The narrowest type that holds every id of a vocabulary of `vocab_size` ids."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One shard of a split: names relative to the split's folder, sizes in bytes, content hashes.

    What lies on storage is the compressed file where there is one, else the raw one.
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
        """How the stored file is compressed, None where it is raw."""
        return None if self.zip_name is None else self.zip_name.rpartition(".")[2]

    @property
    def size(self) -> int:
        """Size of the stored file in bytes."""
        return self.raw_bytes if self.zip_bytes is None else self.zip_bytes

    @property
    def hash(self) -> str:
        """Content hash of the stored file."""
        return self.raw_hash if self.zip_hash is None else self.zip_hash
