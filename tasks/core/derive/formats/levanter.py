"""Levanter's cache: two zarr arrays per split, the ids and where each document ends among them.

An array is cut into shard files of 512 chunks; each chunk is a Blosc frame, and an index at the end
says where each one is. Frames are stored, not compressed: so their offsets are known before a byte
is written, and parts write their own ranges of a shard side by side.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streaming_ext.format.layout import Split
from tasks.core.derive.export_format import ExportFiles, ExportFormat, PartPosition
from tasks.core.derive.export_records import Made
from tasks.core.derive.formats.flat import Dtype, StreamWriter
from tasks.core.reading.documents import Documents

_CHUNK = 2**18  # values, as Levanter wants them
_CHUNKS = 512  # of a shard
_FRAME_HEAD = 16
_NO_CHUNK = 2**64 - 1
_INDEX_BYTES = 16 * _CHUNKS + 4
_ZARR_JSON = """{
  "zarr_format": 3,
  "node_type": "array",
  "shape": [18014398509481984],
  "data_type": "%(type)s",
  "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [%(shard)d]}},
  "chunk_key_encoding": {"name": "default"},
  "fill_value": 0,
  "codecs": [{"name": "sharding_indexed", "configuration": {
    "chunk_shape": [%(chunk)d],
    "codecs": [
      {"name": "bytes", "configuration": {"endian": "little"}},
      {"name": "blosc", "configuration": {
        "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0, "typesize": %(bytes)d
      }}
    ],
    "index_codecs": [
      {"name": "bytes", "configuration": {"endian": "little"}},
      {"name": "crc32c"}
    ]
  }}]
}"""


def _crc32c(data: bytes) -> int:
    """CRC-32C of an index of some kilobytes, bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True, slots=True)
class _Array:
    """One zarr array of one dimension; see `Layout`.

    Attributes:
        folder: below the root of the export.
        dtype: of a value.
        total: values that are not the fill value.
    """

    folder: str
    dtype: Dtype
    total: int

    @property
    def frame(self) -> int:
        """Bytes of a chunk with its head."""
        return _FRAME_HEAD + _CHUNK * self.dtype.itemsize

    @property
    def shards(self) -> dict[str, int]:
        """Chunks of each shard, by its path."""
        chunks = -(-self.total // _CHUNK)
        return {
            f"{self.folder}/c/{number}": min(_CHUNKS, chunks - first)
            for number, first in enumerate(range(0, chunks, _CHUNKS))
        }

    def locate(self, position: int) -> tuple[str, int, bytes, int]:
        """Where a value is; the first one of a chunk comes after the head of a frame."""
        chunk, first = divmod(position, _CHUNK)
        shard, number = divmod(chunk, _CHUNKS)
        start = number * self.frame
        if first:
            head, start = b"", start + _FRAME_HEAD + first * self.dtype.itemsize
        else:  # of a Blosc frame that is stored: versions, flags, and sizes with and without it
            sizes = np.array([self.frame - _FRAME_HEAD, self.frame - _FRAME_HEAD, self.frame])
            head = bytes([2, 1, 2, self.dtype.itemsize]) + sizes.astype("<u4").tobytes()
        return f"{self.folder}/c/{shard}", start, head, _CHUNK - first

    def index(self, chunks: int) -> bytes:
        """Where the chunks of a shard are, with its checksum."""
        offsets = np.full((_CHUNKS, 2), _NO_CHUNK, "<u8")
        offsets[:chunks, 0] = np.arange(chunks) * self.frame
        offsets[:chunks, 1] = self.frame
        return offsets.tobytes() + _crc32c(offsets.tobytes()).to_bytes(4, "little")

    def metadata(self) -> bytes:
        """`zarr.json`."""
        values = {
            "type": self.dtype.name,
            "bytes": self.dtype.itemsize,
            "chunk": _CHUNK,
            "shard": _CHUNK * _CHUNKS,
        }
        return json.dumps(json.loads(_ZARR_JSON % values), sort_keys=True).encode()


class LevanterFormat(ExportFormat):
    """Two arrays per split that all parts write into, and a ledger."""

    name = "levanter"

    def _arrays(self, split: Split) -> tuple[_Array, _Array]:
        """Ids, and ends of documents after the number of documents."""
        total, folder = self.totals[split], f"{split}/input_ids"
        return (
            _Array(folder=f"{folder}/data", dtype=np.dtype("<i4"), total=total.tokens),
            _Array(folder=f"{folder}/offsets", dtype=np.dtype("<i8"), total=total.documents + 1),
        )

    def shared(self) -> Mapping[str, int]:
        """The shards of all arrays."""
        return {
            path: chunks * array.frame + _INDEX_BYTES
            for split in self.totals
            for array in self._arrays(split)
            for path, chunks in array.shards.items()
        }

    def write(
        self, position: PartPosition, documents: Iterable[Documents], out: ExportFiles
    ) -> Sequence[Made]:
        """Write a part's ranges of the arrays."""
        ids_array, ends_array = self._arrays(position.split)
        tokens = position.before.tokens
        with (
            StreamWriter(out, ids_array, tokens) as ids,
            StreamWriter(out, ends_array, 1 + position.before.documents) as ends,
        ):
            for block in documents:
                ids.write(block.stream)
                ends.write(block.ends + tokens)
                tokens += len(block.stream)
        return ()

    def finish(self, made: Mapping[Split, Sequence[Made]], out: ExportFiles) -> None:
        """Write what surrounds the values of parts, and the ledger."""
        for split, total in self.totals.items():
            arrays = self._arrays(split)
            with StreamWriter(out, arrays[1], 0) as count:
                count.write(np.array([total.documents]))
            for array in arrays:
                out.put(f"{array.folder}/zarr.json", array.metadata())
                with StreamWriter(out, array, array.total) as rest:
                    rest.write(np.zeros(-array.total % _CHUNK, array.dtype))
                for path, chunks in array.shards.items():
                    out.put(path, array.index(chunks), start=chunks * array.frame)
            ledger = {
                "total_num_rows": total.documents,
                "shard_rows": {"shardmill": total.documents},
                "is_finished": True,
                "finished_shards": ["shardmill"],
                "field_counts": {"input_ids": total.tokens},
                "metadata": {"preprocessor_metadata": {}},
            }
            out.put(f"{split}/shard_ledger.json", json.dumps(ledger, indent=2).encode())
