"""The files of a part on scratch, under the names that they will have on the output."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.dataset.formats.mds import Compression, Shard, content_hash, shard_name
from streaming_ext.dataset.layout import SPLITS, Split, documents_path
from streaming_ext.dataset.manifest import DatasetSpec, SplitPart
from streaming_ext.dataset.provenance import DOCUMENTS_SCHEMA
from tasks.core.outputs.packing import RawShard, ShardPacker

RESULT_FILE = "tokenized.json"
_DOCUMENTS_A_ROW_GROUP = 2**20

Buffers = dict[Split, bytearray]


class PartFiles:
    """The shards and the provenance of one part, open for writing."""

    def __init__(self, folder: Path, part: int, spec: DatasetSpec, buffers: Buffers) -> None:
        """Make the files.

        Args:
            folder: an empty one on scratch.
            part: number of the part.
            spec: how it is packed.
            buffers: one a split, kept from part to part.
        """
        self._splits = {
            split: _SplitShards(folder / split, part, spec, buffers.get(split))
            for split in spec.splits
        }
        buffers.update({split: shards.buffer for split, shards in self._splits.items()})
        self._documents = _DocumentsFile(folder / documents_path(part))

    def add(
        self,
        stream: npt.NDArray[Any],
        rows: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        in_holdout: npt.NDArray[np.bool_],
    ) -> None:
        """Append documents.

        Args:
            stream: their ids, an end-of-text id behind each, (tokens,).
            rows: their rows in the source file, (documents,).
            lengths: their tokens, without end-of-text ids, (documents,).
            in_holdout: (documents,).
        """
        # ends: (documents,), where each document ends in the stream
        ends = np.cumsum(lengths + 1)
        start = 0
        # runs of documents of one split: each one's last document
        for last in np.flatnonzero(np.diff(in_holdout, append=~in_holdout[-1:])).tolist():
            self._splits[SPLITS[int(in_holdout[last])]].add(stream[start : ends[last]])
            start = int(ends[last])
        for split, mask in (("train", ~in_holdout), ("holdout", in_holdout)):
            if split in self._splits:
                self._splits[split].documents += int(mask.sum())
        self._documents.add(rows, lengths, in_holdout)

    def finish(self) -> dict[Split, SplitPart]:
        """Write what is left, and say what each split holds."""
        self._documents.close()
        return {split: shards.finish() for split, shards in self._splits.items()}


class _SplitShards:
    """The shards of one split."""

    def __init__(
        self, folder: Path, part: int, spec: DatasetSpec, buffer: bytearray | None
    ) -> None:
        self._folder = folder
        self._part = part
        self._compression = Compression.parse(spec.compression)
        self._packer = ShardPacker(spec.shard_format, spec.tokenizer.eot_id, buffer)
        self._shards: list[Shard] = []
        self._padding = 0
        self.documents = 0

    @property
    def buffer(self) -> bytearray:
        return self._packer.buffer

    def add(self, tokens: npt.NDArray[Any]) -> None:
        for raw in self._packer.add(tokens):
            self._store(raw)

    def finish(self) -> SplitPart:
        for raw in self._packer.finish():
            self._store(raw)
        return SplitPart(
            documents=self.documents,
            tokens=self._packer.tokens,
            padding=self._padding,
            shards=tuple(self._shards),
        )

    def _store(self, raw: RawShard) -> None:
        raw_name = shard_name(self._part, len(self._shards))
        shard = Shard(
            samples=raw.samples,
            raw_name=raw_name,
            raw_bytes=len(raw.data),
            raw_hash=content_hash(raw.data),
        )
        stored: bytes | memoryview = raw.data
        if self._compression is not None:
            stored = self._compression.compress(raw.data)
            shard = replace(
                shard,
                zip_name=f"{raw_name}.{self._compression.codec}",
                zip_bytes=len(stored),
                zip_hash=content_hash(stored),
            )
        _write(self._folder / shard.name, stored)
        self._shards.append(shard)
        self._padding += raw.padding


class _DocumentsFile:
    """Where each document came from, as a Parquet file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(path, DOCUMENTS_SCHEMA, compression="zstd")
        self._pending: list[pa.RecordBatch] = []

    def add(
        self,
        rows: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        in_holdout: npt.NDArray[np.bool_],
    ) -> None:
        names = np.array(SPLITS, dtype=object)[in_holdout.astype(np.int8)]
        self._pending.append(
            pa.record_batch(
                [rows, pa.array(names, pa.string()), lengths.astype(np.uint32)],
                schema=DOCUMENTS_SCHEMA,
            )
        )
        if sum(batch.num_rows for batch in self._pending) >= _DOCUMENTS_A_ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._pending, DOCUMENTS_SCHEMA).combine_chunks()
        self._pending = []
        if len(table):
            self._writer.write_table(table, row_group_size=len(table))

    def close(self) -> None:
        self._flush()
        self._writer.close()


def _write(path: Path, data: bytes | memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        # Have the disk begin, so that putting it in place later has less to wait for.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
