"""The MDS shard as Shardmill writes it: unpacked, byte for byte what MDSWriter writes.

A raw shard is ``num_samples: u32``, ``offsets: u32[num_samples + 1]``, the column description as
JSON, then the samples back to back. With one fixed-size column nothing stands between two
samples, so the tail of the file is a flat array of token ids that can be memory-mapped.

Layout of the format: mosaicml-streaming, ``streaming/base/format/mds/writer.py``.
"""

import bz2
import gzip
import json
import re
import zlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.errors import CorruptDatasetError, UsageError

COLUMN = "tokens"
HASH = "xxh128"
INDEX_VERSION = 2
MAX_SHARD_BYTES = 2**32 - 1  # offsets are u32

TokenDtype = Literal["uint16", "uint32"]
TokenArray = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

# codec name as MDS spells it -> (default level as in mosaicml-streaming, levels)
_CODECS: dict[str, tuple[int, range]] = {
    "zstd": (3, range(1, 23)),
    "gz": (9, range(1, 10)),
    "bz2": (9, range(1, 10)),
}
_HASH = re.compile(r"[0-9a-f]{32}")
_SHARD_NAME = re.compile(r"(?P<part>\d{5,})/shard\.\d{5,}\.mds(\.[a-z0-9]+)?")


def content_hash(data: bytes | memoryview) -> str:
    """The hash that names the content of every file of a dataset: XXH3-128, as hex."""
    return xxhash.xxh3_128_hexdigest(data)


def token_dtype(vocab_size: int) -> TokenDtype:
    """The narrowest type that holds every id of a vocabulary of `vocab_size` ids."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """A codec and its level, written `zstd:1`, `gz`, `none` as mosaicml-streaming writes them."""

    codec: str
    level: int

    @classmethod
    def parse(cls, text: str) -> "Compression | None":
        """Read ``codec[:level]``; ``none`` is no compression.

        Raises:
            UsageError: the codec or its level is not one that MDS knows.
        """
        if text == "none":
            return None
        codec, colon, level_text = text.partition(":")
        if codec not in _CODECS:
            raise UsageError(
                f"Compression {text!r} is unknown: expected none or one of {', '.join(_CODECS)}, "
                "with a level behind a colon where wanted, for example zstd:1."
            )
        default_level, levels = _CODECS[codec]
        if not colon:
            return cls(codec=codec, level=default_level)
        # Written as stock mosaicml-streaming reads it: no sign, no leading zero.
        if level_text not in {str(level) for level in levels}:
            raise UsageError(
                f"Compression {text!r}: {codec} takes a level from {levels.start} to "
                f"{levels.stop - 1}, got {level_text!r}."
            )
        return cls(codec=codec, level=int(level_text))

    def compress(self, data: bytes | memoryview) -> bytes:
        """Compress one raw shard; the same input gives the same bytes on any number of cores."""
        if self.codec == "zstd":
            # A third faster than the library of MDSWriter, and no larger.
            packed: bytes = pa.Codec("zstd", self.level).compress(data, asbytes=True)
            return packed
        if self.codec == "gz":
            return gzip.compress(data, self.level, mtime=0)
        return bz2.compress(data, self.level)


def decompress(data: bytes, *, codec: str, raw_size: int) -> bytes:
    """Unpack `data`, never writing more than `raw_size` bytes.

    Args:
        data: the compressed bytes.
        codec: the codec's name in MDS, a level behind a colon is ignored.
        raw_size: size of the result in bytes, as the index says.

    Raises:
        CorruptDatasetError: the data is damaged, or does not unpack to exactly `raw_size` bytes.
    """
    name = codec.partition(":")[0]
    try:
        if name == "zstd":
            raw = pa.Codec("zstd").decompress(data, decompressed_size=raw_size, asbytes=True)
        elif name in {"gz", "bz2"}:
            unpacker = zlib.decompressobj(wbits=31) if name == "gz" else bz2.BZ2Decompressor()
            raw = unpacker.decompress(data, raw_size + 1)
            if len(raw) <= raw_size and (not unpacker.eof or unpacker.unused_data):
                raise CorruptDatasetError(f"damaged {codec} data: it ends elsewhere")
        else:
            raise CorruptDatasetError(
                f"compressed with {codec!r}; this reader knows {', '.join(_CODECS)}"
            )
    except (OSError, ValueError, zlib.error) as error:
        raise CorruptDatasetError(f"damaged {codec} data: {error}") from error
    if len(raw) != raw_size:
        raise CorruptDatasetError(f"unpacks to {len(raw)} bytes, the index says {raw_size}")
    return bytes(raw)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFormat:
    """How the samples of a dataset are stored.

    Attributes:
        sequence_length: tokens a sample.
        dtype: type of one token id on disk.
        shard_size: upper bound of a raw shard in bytes, headers included.
        compression: as text, `none` or `codec[:level]`.
    """

    sequence_length: int
    dtype: TokenDtype
    shard_size: int
    compression: str

    @property
    def encoding(self) -> str:
        """The MDS encoding of the column."""
        return f"ndarray:{self.dtype}:{self.sequence_length}"

    @property
    def sample_bytes(self) -> int:
        """Size of one sample in bytes."""
        return self.sequence_length * np.dtype(self.dtype).itemsize

    @property
    def samples_per_shard(self) -> int:
        """How many samples a full shard holds; the rule is MDSWriter's.

        Raises:
            UsageError: not even one sample fits.
        """
        room = self.shard_size - 8 - len(self._config_json())
        count = room // (self.sample_bytes + 4)
        if count < 1:
            raise UsageError(
                f"A shard of {self.shard_size} bytes cannot hold one sample of "
                f"{self.sequence_length} tokens ({self.sample_bytes} bytes). "
                "Raise --shard-size or lower --sequence-length."
            )
        return count

    def _mds_config(self) -> dict[str, Any]:
        return {
            "version": INDEX_VERSION,
            "format": "mds",
            "compression": None if self.compression == "none" else self.compression,
            "hashes": [HASH],
            "size_limit": self.shard_size,
            "column_names": [COLUMN],
            "column_encodings": [self.encoding],
            "column_sizes": [self.sample_bytes],
        }

    def _config_json(self) -> bytes:
        return json.dumps(self._mds_config(), sort_keys=True).encode()

    def header(self, num_samples: int) -> bytes:
        """The bytes of a raw shard that stand before its samples."""
        config = self._config_json()
        first = 4 + 4 * (num_samples + 1) + len(config)
        # offsets: (num_samples + 1,), from the start of the file
        offsets = first + np.arange(num_samples + 1, dtype=np.int64) * self.sample_bytes
        return np.uint32(num_samples).tobytes() + offsets.astype("<u4").tobytes() + config

    def raw_size(self, num_samples: int) -> int:
        """Size of a raw shard of `num_samples` samples in bytes."""
        return 8 + 4 * num_samples + len(self._config_json()) + num_samples * self.sample_bytes

    def tokens_of(self, raw: bytes | memoryview, num_samples: int) -> TokenArray:
        """The samples of a raw shard, as a view of shape (num_samples, sequence_length).

        Raises:
            CorruptDatasetError: size or header is not that of such a shard.
        """
        header = self.header(num_samples)
        if len(raw) != self.raw_size(num_samples) or bytes(raw[: len(header)]) != header:
            raise CorruptDatasetError(
                f"not a shard of {num_samples} samples encoded {self.encoding}: "
                f"{len(raw)} bytes, expected {self.raw_size(num_samples)} with a matching header"
            )
        flat = np.frombuffer(raw, dtype=np.dtype(self.dtype).newbyteorder("<"), offset=len(header))
        return flat.reshape(num_samples, self.sequence_length)

    def index_entry(self, shard: "Shard") -> dict[str, Any]:
        """One element of `shards` in an MDS `index.json`."""
        return self._mds_config() | {
            "samples": shard.samples,
            "raw_data": {
                "basename": shard.raw_name,
                "bytes": shard.raw_bytes,
                "hashes": {HASH: shard.raw_hash},
            },
            "zip_data": None
            if shard.zip_name is None
            else {
                "basename": shard.zip_name,
                "bytes": shard.zip_bytes,
                "hashes": {HASH: shard.zip_hash},
            },
        }


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
            if name is not None and not _SHARD_NAME.fullmatch(name):
                raise CorruptDatasetError(
                    f"{name!r} is no name of a shard: expected PART/shard.NUMBER.mds"
                )

    @property
    def name(self) -> str:
        """Name of the stored file."""
        return self.zip_name or self.raw_name

    @property
    def size(self) -> int:
        """Size of the stored file in bytes."""
        return self.raw_bytes if self.zip_bytes is None else self.zip_bytes

    @property
    def hash(self) -> str:
        """Content hash of the stored file."""
        return self.raw_hash if self.zip_hash is None else self.zip_hash


def shard_name(part: int, number: int) -> str:
    """Name of a raw shard relative to its split's folder."""
    return f"{part:05}/shard.{number:05}.mds"


def index_json(entries: list[dict[str, Any]]) -> bytes:
    """The bytes of an `index.json`."""
    return json.dumps({"version": INDEX_VERSION, "shards": entries}, sort_keys=True).encode()
