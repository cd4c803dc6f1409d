"""Levanter's cache: two zarr arrays a split, the ids and where each document ends among them.

An array is cut into shard files of 512 chunks; each chunk is a Blosc frame, and an index behind
them says where each lies. Frames are stored, not compressed: so their places are known before a
byte is written, and parts write their own ranges of a shard side by side.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_ext.format.layout import Split
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store.crc import Crc
from tasks.core.derive.export_format import ExportOptions, Extent, Extents, Made, Out, Place, Sink
from tasks.core.derive.formats.asked import require_only
from tasks.core.reading.documents import Documents, Ids

_CHUNK = 2**18  # values, as Levanter asks for them
_CHUNKS = 512  # of a shard
_FRAME_HEAD = 16
_NOWHERE = 2**64 - 1
_INDEX_BYTES = 16 * _CHUNKS + 4


@dataclass(frozen=True, kw_only=True, slots=True)
class _Array:
    """One zarr array of one dimension.

    Attributes:
        folder: below the root of the export.
        dtype: of a value.
        total: values that are not the fill value.
    """

    folder: str
    dtype: np.dtype[Any]
    total: int

    @property
    def frame(self) -> int:
        """Bytes of a chunk with its head."""
        return _FRAME_HEAD + _CHUNK * self.dtype.itemsize

    @property
    def frame_head(self) -> bytes:
        """Of a Blosc frame that is stored: versions, flags, and sizes with and without it."""
        size = _CHUNK * self.dtype.itemsize
        sizes = np.array([size, size, size + _FRAME_HEAD], "<u4")
        return bytes([2, 1, 2, self.dtype.itemsize]) + sizes.tobytes()

    def path(self, shard: int) -> str:
        """A shard's file."""
        return f"{self.folder}/c/{shard}"

    def chunks_of(self, shard: int) -> int:
        """Chunks that a shard holds."""
        return min(-(-self.total // _CHUNK) - shard * _CHUNKS, _CHUNKS)

    @property
    def shards(self) -> int:
        """How many there are."""
        return -(-self.total // (_CHUNK * _CHUNKS))

    def sizes(self) -> dict[str, int]:
        """The size of each shard's file in bytes."""
        return {
            self.path(shard): self.chunks_of(shard) * self.frame + _INDEX_BYTES
            for shard in range(self.shards)
        }

    def place(self, value: int) -> tuple[int, int]:
        """The shard of a value, and its place there; that of a chunk's first one is its head's."""
        chunk, at = divmod(value, _CHUNK)
        shard, number = divmod(chunk, _CHUNKS)
        return shard, number * self.frame + (at and _FRAME_HEAD + at * self.dtype.itemsize)

    def index(self, shard: int) -> bytes:
        """Where the chunks of a shard lie, with its checksum."""
        chunks = self.chunks_of(shard)
        places = np.full((_CHUNKS, 2), _NOWHERE, "<u8")
        places[:chunks, 0] = np.arange(chunks) * self.frame
        places[:chunks, 1] = self.frame
        crc = Crc("crc32c")
        crc.update(places.tobytes())
        return places.tobytes() + crc.digest()[::-1]

    def metadata(self) -> bytes:
        """`zarr.json`."""
        little = {"name": "bytes", "configuration": {"endian": "little"}}
        blosc = {
            "cname": "lz4",
            "clevel": 5,
            "shuffle": "shuffle",
            "blocksize": 0,
            "typesize": self.dtype.itemsize,
        }
        sharding = {
            "chunk_shape": [_CHUNK],
            "codecs": [little, {"name": "blosc", "configuration": blosc}],
            "index_codecs": [little, {"name": "crc32c"}],
        }
        grid = {"name": "regular", "configuration": {"chunk_shape": [_CHUNK * _CHUNKS]}}
        array = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [2**54],
            "data_type": self.dtype.name,
            "chunk_grid": grid,
            "chunk_key_encoding": {"name": "default"},
            "fill_value": 0,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        }
        return json.dumps(array, sort_keys=True).encode()


class LevanterFormat:
    """See `ExportFormat`."""

    tells_origins = False

    def __init__(self, spec: DatasetSpec, options: ExportOptions, totals: Extents) -> None:
        self._options, self._totals = options, totals

    def require_possible(self) -> None:
        """Refuse options."""
        require_only("levanter", self._options)

    def files_of(self, own: Extent) -> int:
        """None of a part's own."""
        return 0

    def _arrays(self, split: Split) -> tuple[_Array, _Array]:
        """Ids, and ends of documents: the first of these says how many there are."""
        total, folder = self._totals[split], f"{split}/input_ids"
        return (
            _Array(folder=f"{folder}/data", dtype=np.dtype("<i4"), total=total.tokens),
            _Array(folder=f"{folder}/offsets", dtype=np.dtype("<i8"), total=total.documents + 1),
        )

    def shared(self) -> Mapping[str, int]:
        """The shards of all arrays."""
        arrays = [array for split in self._totals for array in self._arrays(split)]
        return {path: size for array in arrays for path, size in array.sizes().items()}

    def open(self, place: Place, out: Out) -> "_Writer":
        """Begin a part's ranges."""
        return _Writer(place, out, *self._arrays(place.split))

    def finish(self, made: Mapping[Split, Sequence[Made]], out: Out) -> None:
        """Write what stands around the values of parts, and the ledger."""
        for split, total in self._totals.items():
            ids, ends = self._arrays(split)
            count = _Values(out, ends, 0)
            count.write(np.array([total.documents]))
            count.close()
            for array in (ids, ends):
                _write(out, f"{array.folder}/zarr.json", array.metadata())
                rest = -array.total % _CHUNK
                behind = _Values(out, array, array.total)
                behind.write(np.zeros(rest, array.dtype))
                behind.close()
                for shard in range(array.shards):
                    index = out.piece(array.path(shard), array.chunks_of(shard) * array.frame)
                    index.write(array.index(shard))
                    index.close()
            ledger = {
                "total_num_rows": total.documents,
                "shard_rows": {"shardmill": total.documents},
                "is_finished": True,
                "finished_shards": ["shardmill"],
                "field_counts": {"input_ids": total.tokens},
                "metadata": {"preprocessor_metadata": {}},
            }
            _write(out, f"{split}/shard_ledger.json", json.dumps(ledger, indent=2).encode())


def _write(out: Out, path: str, data: bytes) -> None:
    sink = out.file(path)
    sink.write(data)
    sink.close()


class _Values:
    """Writes consecutive values of an array, with the heads of the chunks that they begin."""

    def __init__(self, out: Out, array: _Array, first: int) -> None:
        self._out, self._array, self._next = out, array, first
        self._sink: Sink | None = None
        self._shard = -1

    def write(self, values: Ids) -> None:
        """Append values."""
        while len(values):
            shard, start = self._array.place(self._next)
            if self._sink is None or shard != self._shard:
                self.close()
                self._sink, self._shard = self._out.piece(self._array.path(shard), start), shard
            if self._next % _CHUNK == 0:
                self._sink.write(self._array.frame_head)
            taken = values[: _CHUNK - self._next % _CHUNK]
            self._sink.write(np.ascontiguousarray(taken, self._array.dtype))
            self._next += len(taken)
            values = values[len(taken) :]

    def close(self) -> None:
        """End what is begun."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None


class _Writer:
    def __init__(self, place: Place, out: Out, ids: _Array, ends: _Array) -> None:
        self._ids = _Values(out, ids, place.before.tokens)
        self._ends = _Values(out, ends, 1 + place.before.documents)
        self._tokens = place.before.tokens

    def add(self, documents: Documents) -> None:
        self._ids.write(documents.stream)
        self._ends.write(documents.ends + self._tokens)
        self._tokens += len(documents.stream)

    def finish(self) -> list[Made]:
        self._ids.close()
        self._ends.close()
        return []
