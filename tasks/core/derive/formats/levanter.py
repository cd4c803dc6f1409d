"""Levanter's cache: two zarr arrays per split, the ids and where each document ends among them.

An array is cut into shard files of 512 chunks; each chunk is a Blosc frame, and an index at the end
says where each one is. Frames are stored, not compressed: so their offsets are known before a byte
is written, and parts write their own ranges of a shard side by side.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from streaming_ext.base.arrays import ceil_div
from streaming_ext.format.layout import Split
from tasks.core.derive.export_format import ExportFiles, ExportFormat, PartPosition
from tasks.core.derive.export_records import Made
from tasks.core.derive.formats.flat import Dtype, StreamFiles, StreamWriter
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


def _array(folder: str, dtype: str, total: int) -> StreamFiles:
    """One zarr array of one dimension, without what surrounds its frames."""
    kind = np.dtype(dtype)
    size = _CHUNK * kind.itemsize
    # of a Blosc frame that is stored: versions, flags, and sizes with and without the head
    sizes = np.array([size, size, size + _FRAME_HEAD], "<u4")
    head = bytes([2, 1, 2, kind.itemsize]) + sizes.tobytes()
    return StreamFiles(
        path=lambda number: f"{folder}/c/{number}",
        dtype=kind,
        total=total,
        each=_CHUNK * _CHUNKS,
        chunk=_CHUNK,
        head=lambda values: head,
    )


def _frames(array: StreamFiles) -> dict[str, tuple[int, int]]:
    """How many frames each shard of an array has, and the bytes of a frame, by its path."""
    frame = _FRAME_HEAD + _CHUNK * array.dtype.itemsize
    return {path: (ceil_div(values, _CHUNK), frame) for path, values in array.counts.items()}


def _index(frames: int, frame: int) -> bytes:
    """Where the frames of a shard are, with its checksum."""
    offsets = np.full((_CHUNKS, 2), _NO_CHUNK, "<u8")
    offsets[:frames, 0] = np.arange(frames) * frame
    offsets[:frames, 1] = frame
    return offsets.tobytes() + _crc32c(offsets.tobytes()).to_bytes(4, "little")


def _metadata(dtype: Dtype) -> bytes:
    """`zarr.json`."""
    values = {"type": dtype.name, "bytes": dtype.itemsize}
    values |= {"chunk": _CHUNK, "shard": _CHUNK * _CHUNKS}
    return json.dumps(json.loads(_ZARR_JSON % values), sort_keys=True).encode()


class LevanterFormat(ExportFormat):
    """Two arrays per split that all parts write into, and a ledger."""

    name = "levanter"

    def _arrays(self, split: Split) -> dict[str, StreamFiles]:
        """Ids, and ends of documents after the number of documents, by their folders."""
        total, folder = self.totals[split], f"{split}/input_ids"
        data, offsets = f"{folder}/data", f"{folder}/offsets"
        return {
            data: _array(data, "<i4", total.tokens),
            offsets: _array(offsets, "<i8", total.documents + 1),
        }

    def shared(self) -> Mapping[str, int]:
        """The shards of all arrays."""
        return {
            path: frames * frame + _INDEX_BYTES
            for split in self.totals
            for array in self._arrays(split).values()
            for path, (frames, frame) in _frames(array).items()
        }

    def write(
        self, position: PartPosition, documents: Iterable[Documents], out: ExportFiles
    ) -> None:
        """Write a part's ranges of the arrays."""
        ids_array, ends_array = self._arrays(position.split).values()
        tokens = position.before.tokens
        with (
            StreamWriter(out, ids_array, tokens) as ids,
            StreamWriter(out, ends_array, 1 + position.before.documents) as ends,
        ):
            for block in documents:
                ids.write(block.stream)
                ends.write(block.ends + tokens)
                tokens += len(block.stream)

    def finish(self, made: Mapping[Split, Sequence[Made]], out: ExportFiles) -> None:
        """Write what surrounds the values of parts, and the ledger."""
        for split, total in self.totals.items():
            arrays = self._arrays(split)
            with StreamWriter(out, arrays[f"{split}/input_ids/offsets"], 0) as count:
                count.write(np.array([total.documents]))
            for folder, array in arrays.items():
                out.put(f"{folder}/zarr.json", _metadata(array.dtype))
                with StreamWriter(out, array, array.total) as rest:
                    rest.write(np.zeros(-array.total % _CHUNK, array.dtype))
                for path, (frames, frame) in _frames(array).items():
                    out.put(path, _index(frames, frame), start=frames * frame)
            ledger = {
                "total_num_rows": total.documents,
                "shard_rows": {"shardmill": total.documents},
                "is_finished": True,
                "finished_shards": ["shardmill"],
                "field_counts": {"input_ids": total.tokens},
                "metadata": {"preprocessor_metadata": {}},
            }
            out.put(f"{split}/shard_ledger.json", json.dumps(ledger, indent=2).encode())
