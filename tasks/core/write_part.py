"""From a part's token streams on scratch to its shards on the output, recorded last."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from streaming_ext.format import Compression, Shard, ShardFormat, content_hash, shard_name
from streaming_ext.layout import Split, documents_path, record_path
from streaming_ext.manifest import DatasetSpec, FileRecord, PartRecord, SplitPart, to_json
from tasks.core.jobs import Progress, TokenizedPart, WriteJob, WrittenPart
from tasks.core.packing import cut
from tasks.core.storage import LocalStorage
from tasks.core.tokenize_part import DOCUMENTS_FILE, RESULT_FILE, tokens_file


def write_part(
    job: WriteJob, storage: LocalStorage, report: Callable[[Progress], None] = lambda progress: None
) -> WrittenPart:
    """Pack, compress, hash and put in place one part; the record goes last and makes it count.

    Raises:
        StorageError: the output is full, gone or not writable.
    """
    began = time.monotonic()
    scratch, spec = Path(job.scratch), job.spec
    part = TokenizedPart.model_validate_json((scratch / RESULT_FILE).read_bytes())
    splits = {
        split: _write_split(split, part, spec, scratch, storage, report) for split in spec.splits
    }
    documents = (scratch / DOCUMENTS_FILE).read_bytes()
    storage.put(documents_path(job.part), documents)
    record = PartRecord(
        part=job.part,
        spec=spec,
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


def _write_split(
    split: Split,
    part: TokenizedPart,
    spec: DatasetSpec,
    scratch: Path,
    storage: LocalStorage,
    report: Callable[[Progress], None],
) -> SplitPart:
    counts, shard_format = part.splits[split], spec.shard_format
    tokens = _open_tokens(scratch / tokens_file(split), counts.tokens, shard_format)
    shards = []
    padding = 0
    for number, piece in enumerate(cut(counts.tokens, shard_format)):
        fill = np.full(piece.padding, spec.tokenizer.eot_id, tokens.dtype)
        raw = b"".join(
            (
                shard_format.header(piece.samples),
                memoryview(tokens[piece.start : piece.end]).cast("B"),
                fill.tobytes(),
            )
        )
        shards.append(
            _write_shard(split, shard_name(part.part, number), piece.samples, raw, spec, storage)
        )
        padding += piece.padding
        report(Progress(fraction=piece.end / max(part.tokens, 1)))
    return SplitPart(
        documents=counts.documents, tokens=counts.tokens, padding=padding, shards=tuple(shards)
    )


def _open_tokens(path: Path, count: int, shard_format: ShardFormat) -> np.ndarray:  # type: ignore[type-arg]
    dtype = np.dtype(shard_format.dtype).newbyteorder("<")
    if count == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r", shape=(count,))


def _write_shard(
    split: Split, raw_name: str, samples: int, raw: bytes, spec: DatasetSpec, storage: LocalStorage
) -> Shard:
    raw_hash = content_hash(raw)
    compression = Compression.parse(spec.compression)
    if compression is None:
        storage.put(f"{split}/{raw_name}", raw)
        return Shard(samples=samples, raw_name=raw_name, raw_bytes=len(raw), raw_hash=raw_hash)
    packed = compression.compress(raw)
    zip_name = f"{raw_name}.{compression.codec}"
    storage.put(f"{split}/{zip_name}", packed)
    return Shard(
        samples=samples,
        raw_name=raw_name,
        raw_bytes=len(raw),
        raw_hash=raw_hash,
        zip_name=zip_name,
        zip_bytes=len(packed),
        zip_hash=content_hash(packed),
    )
