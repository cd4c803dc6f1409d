"""The MDS shard as Shardmill writes it: a raw shard has the same bytes as one of MDSWriter.

A raw shard is ``num_samples: u32``, ``offsets: u32[num_samples + 1]``, the column description as
JSON, then the samples back to back. With one column of fixed size nothing lies between two
samples, so the tail of the file is a flat array of token ids that can be memory-mapped.

Layout of the format: mosaicml-streaming, ``streaming/base/format/mds/writer.py``.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.format.mds_foreign import COLUMN
from streaming_ext.format.mds_index import INDEX_VERSION, MAX_SHARD_BYTES, read_table
from streaming_ext.format.schema import HASH
from streaming_ext.format.shard import Shard, ShardTable, TokenArray, TokenDtype

Samples = TypeVar("Samples", int, Ints)  # number of samples: of one shard, or of each of several


@dataclass(frozen=True, kw_only=True)
class MdsFormat:
    """The format of the shards of a split: MDS with one column.

    Other formats of shards are subclasses.

    Attributes:
        sequence_length: tokens per sample.
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

    @property
    def encoding(self) -> str:
        """The MDS encoding of the column."""
        return f"ndarray:{self.dtype}:{self.sequence_length}"

    @property
    def samples_per_shard(self) -> int:
        """Number of samples that a full shard holds, by the rule of MDSWriter.

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

    def require_possible(self) -> None:
        """Refuse a shard size that is too small for a sample or too large for the offsets.

        Raises:
            UsageError: the message says what is possible.
        """
        if self.shard_size > MAX_SHARD_BYTES:
            raise UsageError(f"shard_size {self.shard_size}, at most {MAX_SHARD_BYTES} is possible")
        _ = self.samples_per_shard

    def shard_name(self, split: str, part: int, number: int) -> str:
        """Return the name of a raw shard relative to its split's folder."""
        return f"{part:05}/shard.{number:05}.mds"

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
        """Return the bytes of a raw shard before its samples."""
        config = self._config_json()
        first = 4 + 4 * (num_samples + 1) + len(config)
        # offsets: (num_samples + 1,), from the start of the file
        offsets = first + np.arange(num_samples + 1, dtype=np.int64) * self.sample_bytes
        return np.uint32(num_samples).tobytes() + offsets.astype("<u4").tobytes() + config

    def raw_size(self, num_samples: Samples) -> Samples:
        """Return the size in bytes of a raw shard, or of several, by the number of samples."""
        return 8 + 4 * num_samples + len(self._config_json()) + num_samples * self.sample_bytes

    def content(self, raw: memoryview, *, prefix: str, first: int) -> bytes | memoryview:
        """Return the content of a shard's file.

        Args:
            raw: header and samples.
            prefix: prefix of the names of the samples, if they have names.
            first: number of the first sample of the shard.
        """
        return raw

    def tokens_of(self, raw: bytes | memoryview, num_samples: int) -> TokenArray:
        """Return the samples of a raw shard as a view: (num_samples, sequence_length).

        Raises:
            CorruptDatasetError: the shard has another size or another header.
        """
        header = self.header(num_samples)
        if len(raw) != self.raw_size(num_samples) or bytes(raw[: len(header)]) != header:
            raise CorruptDatasetError(
                f"not a shard of {num_samples} samples encoded {self.encoding}: "
                f"{len(raw)} bytes, expected {self.raw_size(num_samples)} with a matching header"
            )
        flat = np.frombuffer(raw, self.id_type, offset=len(header))
        return flat.reshape(num_samples, self.sequence_length)

    def _entry(self, shard: Shard) -> dict[str, Any]:
        """Return the entry of a shard in the list `shards` of the index."""
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

    def index(self, shards: Iterable[Shard]) -> bytes:
        """Return the bytes of a split's `index.json`, for the shards of all parts in order."""
        entries = [self._entry(shard) for shard in shards]
        return json.dumps({"version": INDEX_VERSION, "shards": entries}, sort_keys=True).encode()

    def table(self, index: bytes, *, where: str) -> ShardTable:
        """Return the shards that an index of this format lists; `where` names it in messages.

        Raises:
            CorruptDatasetError: the index is damaged.
        """
        return read_table(index, where=where, empty=(self.dtype, self.sequence_length))
