"""From a part's token streams on scratch to its shards on the output, recorded last."""

import time
from collections.abc import Callable
from dataclasses import replace
from io import RawIOBase
from pathlib import Path

import numpy as np

from streaming_ext.errors import StorageError
from streaming_ext.format import Compression, Shard, content_hash, shard_name
from streaming_ext.layout import Split, documents_path, record_path
from streaming_ext.manifest import DatasetSpec, FileRecord, PartRecord, SplitPart, to_json
from tasks.core.jobs import Progress, TokenizedPart, WriteJob, WrittenPart
from tasks.core.packing import ShardSlice, cut
from tasks.core.storage import Storage
from tasks.core.storage.uploads import Put, uploads
from tasks.core.tokenize_part import DOCUMENTS_FILE, RESULT_FILE, tokens_file

Report = Callable[[Progress], None]


def write_part(
    job: WriteJob, storage: Storage, report: Report = lambda progress: None
) -> WrittenPart:
    """Pack, compress, hash and put in place one part; the record goes last and makes it count.

    Raises:
        StorageError: the output is full, gone or not writable, or scratch is not this part's.
    """
    began = time.monotonic()
    scratch = Path(job.scratch)
    part = TokenizedPart.model_validate_json((scratch / RESULT_FILE).read_bytes())
    if (part.part, part.source.url) != (job.part, job.source_url):
        raise StorageError(
            f"scratch {scratch} holds part {part.part} of {part.source.url}, expected part "
            f"{job.part} of {job.source_url}. Does another run use the same --scratch?"
        )
    documents = (scratch / DOCUMENTS_FILE).read_bytes()
    with uploads(storage) as put:
        writer = _ShardWriter(part, job.spec, put)
        splits = {split: writer.write(split, scratch, report) for split in job.spec.splits}
        put(documents_path(job.part), documents)
    record = PartRecord(
        part=job.part,
        spec=job.spec,
        source=part.source,
        rows=part.rows,
        null_documents=part.null_documents,
        empty_documents=part.empty_documents,
        text_bytes=part.text_bytes,
        splits=splits,
        documents=FileRecord.of(documents_path(job.part), documents),
    )
    storage.put(record_path(job.part), to_json(record))
    shards = [shard for split in splits.values() for shard in split.shards]
    return WrittenPart(
        summary=record.summary(),
        shards=len(shards),
        shard_bytes=sum(shard.size for shard in shards),
        seconds=time.monotonic() - began,
    )


class _ShardWriter:
    """Writes the shards of one part."""

    def __init__(self, part: TokenizedPart, spec: DatasetSpec, put: Put) -> None:
        self._part = part
        self._spec = spec
        self._format = spec.shard_format
        self._compression = Compression.parse(spec.compression)
        self._buffer = bytearray()  # of one shard after another: fresh pages cost time
        self._store = put

    def write(self, split: Split, scratch: Path, report: Report) -> SplitPart:
        """Write all shards of a split from its token file."""
        counts = self._part.splits[split]
        pieces = cut(counts.tokens, self._format)
        shards = []
        with (scratch / tokens_file(split)).open("rb", buffering=0) as tokens:
            for number, piece in enumerate(pieces):
                shards.append(self._put(split, number, piece.samples, self._raw(piece, tokens)))
                report(Progress(fraction=piece.end / max(self._part.tokens, 1)))
        return SplitPart(
            documents=counts.documents,
            tokens=counts.tokens,
            padding=sum(piece.padding for piece in pieces),
            shards=tuple(shards),
        )

    def _raw(self, piece: ShardSlice, tokens: RawIOBase) -> memoryview:
        """The bytes of a raw shard, until the next one; `tokens` stands where the piece begins."""
        dtype = np.dtype(self._format.dtype)
        header = self._format.header(piece.samples)
        size = self._format.raw_size(piece.samples)
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        raw = memoryview(self._buffer)[:size]
        raw[: len(header)] = header
        # Read, not mapped: mapped pages of a large file count as this process's memory.
        body = raw[len(header) : len(header) + (piece.end - piece.start) * dtype.itemsize]
        while body:
            count = tokens.readinto(body)
            if not count:
                raise StorageError(f"{len(body)} bytes of tokens are gone from scratch.")
            body = body[count:]
        fill = np.full(piece.padding, self._spec.tokenizer.eot_id, dtype.newbyteorder("<"))
        raw[len(raw) - fill.nbytes :] = fill.tobytes()
        return raw

    def _put(self, split: Split, number: int, samples: int, raw: memoryview) -> Shard:
        raw_name = shard_name(self._part.part, number)
        shard = Shard(
            samples=samples, raw_name=raw_name, raw_bytes=len(raw), raw_hash=content_hash(raw)
        )
        if self._compression is None:
            stored = bytes(raw)
        else:
            stored = self._compression.compress(raw)
            shard = replace(
                shard,
                zip_name=f"{raw_name}.{self._compression.codec}",
                zip_bytes=len(stored),
                zip_hash=content_hash(stored),
            )
        self._store(f"{split}/{shard.name}", stored)
        return shard
