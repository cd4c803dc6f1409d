"""Tars for WebDataset: a sample is a member `KEY.npy` of its row's ids.

All members have one size, so that sample i begins at byte i * `stride`. A tar holds as many samples
as the MDS shard of the same `--shard-size` would, so that training sees the same order; with heads
and padding it is somewhat larger.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np

from streaming_ext.base.errors import CorruptDatasetError, UsageError, one_line
from streaming_ext.format.mds import MdsFormat
from streaming_ext.format.shard import Samples, Shard, ShardTable, TokenArray, TokenDtype

BLOCK: Final = 512  # of a tar
END: Final = 2 * BLOCK
NPY_HEAD: Final = 128
_CODECS: Final = ("none", "gz")  # that readers of WebDataset unpack


@dataclass(frozen=True, kw_only=True, slots=True)
class WebdatasetFormat:
    """Tars of rows of one length; see `ShardFormat` for the words."""

    sequence_length: int
    dtype: TokenDtype
    shard_size: int
    compression: str

    @property
    def stride(self) -> int:
        """Bytes from one sample to the next: the member's head, its content, padding."""
        content = NPY_HEAD + self.sequence_length * np.dtype(self.dtype).itemsize
        return BLOCK + content + -content % BLOCK

    @property
    def samples_per_shard(self) -> int:
        """As many as in an MDS shard."""
        return self._as_mds().samples_per_shard

    def _as_mds(self) -> MdsFormat:
        return MdsFormat(
            sequence_length=self.sequence_length,
            dtype=self.dtype,
            shard_size=self.shard_size,
            compression=self.compression,
        )

    def require_possible(self) -> None:
        """Refuse what an MDS shard would, and what readers of WebDataset do not unpack."""
        self._as_mds().require_possible()
        if self.compression.partition(":")[0] not in _CODECS:
            raise UsageError(
                f"--compression {self.compression}: readers of WebDataset unpack {_CODECS[1]}, or "
                f"nothing. Pass --compression {_CODECS[0]} or {_CODECS[1]}, or leave it out."
            )

    def shard_names(self, split: str, part: int, number: int) -> tuple[str, ...]:
        """Names of a raw tar relative to its split's folder, the first one today's.

        No two of a dataset end in the same name: caches of `webdataset` and `wids` know tars by it.
        """
        folder = f"{part:05}"
        return f"{folder}/{split}-{part:05}-{number:05}.tar", f"{folder}/shard.{number:05}.tar"

    def raw_size(self, num_samples: Samples) -> Samples:
        """Size of a raw tar of so many samples in bytes."""
        return num_samples * self.stride + END

    def tokens_of(self, raw: bytes | memoryview, num_samples: int) -> TokenArray:
        """The samples of a raw tar, of shape (num_samples, sequence_length).

        Raises:
            CorruptDatasetError: it is no such tar.
        """
        head = self._npy_head()
        first, last = BLOCK + NPY_HEAD, BLOCK + NPY_HEAD + self.sequence_length * self._itemsize
        if len(raw) == self.raw_size(num_samples):
            # members: (num_samples, stride)
            members = np.frombuffer(raw, np.uint8, num_samples * self.stride)
            members = members.reshape(num_samples, self.stride)
            if (members[:, BLOCK:first] == np.frombuffer(head, np.uint8)).all():
                ids = np.ascontiguousarray(members[:, first:last])
                return ids.view(np.dtype(self.dtype).newbyteorder("<"))
        raise CorruptDatasetError(
            f"not a tar of {num_samples} samples of {self.sequence_length} {self.dtype} ids: "
            f"{len(raw)} bytes, expected {self.raw_size(num_samples)} with a .npy each"
        )

    @property
    def _itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    def _npy_head(self) -> bytes:
        """What `numpy.save` writes before the ids of a row."""
        told = (
            f"{{'descr': '{np.dtype(self.dtype).newbyteorder('<').str}', 'fortran_order': False, "
            f"'shape': ({self.sequence_length},), }}"
        )
        return (
            b"\x93NUMPY\x01\0"
            + bytes([NPY_HEAD - 10, 0])
            + told.ljust(NPY_HEAD - 11).encode()
            + b"\n"
        )

    def index(self, shards: Iterable[Shard]) -> bytes:
        """A list of tars as `wids` reads it, with their hashes beside."""
        listed = [
            {
                "url": shard.name,
                "nsamples": shard.samples,
                "filesize": shard.size,
                "shard": asdict(shard),
            }
            for shard in shards
        ]
        index = {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "name": "tokens",
            "shardlist": listed,
        }
        return json.dumps(index, sort_keys=True).encode()

    def table(self, index: bytes, *, where: str) -> ShardTable:
        """The tars that an index lists; read, their ids lie back to back.

        Raises:
            CorruptDatasetError: it is damaged.
        """
        try:
            shards = [Shard(**listed["shard"]) for listed in json.loads(index)["shardlist"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptDatasetError(f"{where}: no list of tars: {one_line(error)}") from error
        table = ShardTable.of_shards(shards, sample_tokens=self.sequence_length, dtype=self.dtype)
        return replace(
            table,
            raw_sizes=table.samples * self.sequence_length * self._itemsize,
            raw_hashes=[None] * len(shards),
            rewriting=self._flattened,
        )

    def _flattened(self, raw: bytes, *, samples: int, where: str) -> bytes:
        return self.tokens_of(raw, samples).tobytes()
