"""A published dataset made in memory from lists of documents, by the rules of the format."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.format.compression import Compression
from streaming_ext.format.layout import MANIFEST, SPLITS, documents_path, index_path
from streaming_ext.format.manifest import Manifest, SplitSummary
from streaming_ext.format.mds import MdsFormat
from streaming_ext.format.record import PartRecord, SourceIdentity, SplitPart
from streaming_ext.format.schema import FileRecord, content_hash, to_json
from streaming_ext.format.shard import Shard
from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity

EOT = 99
Document = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a test knows of a dataset: its folder and the stream of each split."""

    root: Path
    streams: dict[str, np.ndarray] = field(default_factory=dict)
    manifest: Manifest


def spec_of(*, sequence_length: int, compression: str, shard_samples: int, vocab_size: int = 100,
            fingerprint: str = "f0") -> DatasetSpec:  # fmt: skip
    """A specification whose shards hold `shard_samples` samples each."""
    dtype = "uint16" if vocab_size <= 2**16 else "uint32"
    size = 10**6
    for _ in range(3):  # the size stands in the header that it must cover
        form = MdsFormat(sequence_length=sequence_length, dtype=dtype, shard_size=size,
                           compression=compression)  # fmt: skip
        size = form.raw_size(shard_samples) + 2
    return DatasetSpec(
        text_column="text",
        sequence_length=sequence_length,
        holdout_fraction=0.1,
        holdout_seed=1,
        shard_size=size,
        compression=compression,
        tokenizer=TokenizerIdentity(
            kind="tiktoken", name="test", vocab_size=vocab_size, eot_id=EOT,
            eot_token="<|endoftext|>", fingerprint=fingerprint,
        ),
    )  # fmt: skip


def build(
    root: Path,
    parts: Sequence[Sequence[tuple[str, Document]]],
    *,
    sequence_length: int = 8,
    compression: str = "zstd:1",
    shard_samples: int = 4,
    vocab_size: int = 100,
    fingerprint: str = "f0",
) -> Built:
    """Write a dataset; each part is a list of (split, token ids), one a row of its source."""
    spec = spec_of(sequence_length=sequence_length, compression=compression,
                   shard_samples=shard_samples, vocab_size=vocab_size,
                   fingerprint=fingerprint)  # fmt: skip
    form = spec.shard_format
    codec = Compression.parse(compression)
    records, entries, streams = [], {s: [] for s in SPLITS}, {s: [] for s in SPLITS}

    def write(path: str, data: bytes) -> FileRecord:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        return FileRecord.of(path, data)

    for number, rows in enumerate(parts):
        splits = {}
        for split in SPLITS:
            documents = [ids for where, ids in rows if where == split]
            flat = np.array([t for ids in documents for t in [*ids, EOT]], form.dtype)
            padding = -len(flat) % sequence_length
            flat = np.concatenate([flat, np.full(padding, EOT, form.dtype)])
            streams[split].append(flat)
            samples = flat.reshape(-1, sequence_length)
            shards = []
            for first in range(0, len(samples), form.samples_per_shard):
                chosen = samples[first : first + form.samples_per_shard]
                raw = form.header(len(chosen)) + chosen.tobytes()
                name = form.shard_name(split, number, len(shards))
                packed = codec.compress(raw) if codec else None
                shard = Shard(
                    samples=len(chosen), raw_name=name, raw_bytes=len(raw),
                    raw_hash=content_hash(raw),
                    zip_name=None if packed is None else f"{name}.{codec.codec}",
                    zip_bytes=None if packed is None else len(packed),
                    zip_hash=None if packed is None else content_hash(packed),
                )  # fmt: skip
                write(f"{split}/{shard.name}", raw if packed is None else packed)
                shards.append(shard)
                entries[split].append(shard)
            splits[split] = SplitPart(documents=len(documents), tokens=len(flat) - padding,
                                      padding=padding, shards=tuple(shards))  # fmt: skip
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.table({
                "row": pa.array(range(len(rows)), pa.int64()),
                "split": pa.array([split for split, _ in rows], pa.string()),
                "tokens": pa.array([len(ids) for _, ids in rows], pa.uint32()),
            }),
            sink,
        )  # fmt: skip
        record = PartRecord(
            part=number, spec=spec,
            source=SourceIdentity(url=f"mem://source-{number}.parquet", size=1, version="v"),
            rows=len(rows), null_documents=0, empty_documents=0, text_bytes=len(rows),
            splits=splits, documents=write(documents_path(number), sink.getvalue().to_pybytes()),
        )  # fmt: skip
        records.append(record)
        write(f"parts/{number:05}.json", to_json(record))
    summaries = {
        split: SplitSummary(
            index=write(index_path(split), form.index(entries[split])),
            documents=sum(r.splits[split].documents for r in records),
            tokens=sum(r.splits[split].tokens for r in records),
            padding=sum(r.splits[split].padding for r in records),
            samples=sum(r.splits[split].samples for r in records),
            shards=len(entries[split]),
        )
        for split in SPLITS
    }
    manifest = Manifest(spec=spec, parts=tuple(r.summary() for r in records), splits=summaries,
                        tokenizer_files=())  # fmt: skip
    write(MANIFEST, to_json(manifest))
    flat = {s: np.concatenate(streams[s]) if streams[s] else np.empty(0) for s in SPLITS}
    return Built(root=root, streams=flat, manifest=manifest)


def some_documents(count: int, *, seed: int = 0, longest: int = 30) -> list[list[int]]:
    """Documents of 1 to `longest` ids below the end-of-text id."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, count)
    return [rng.integers(0, EOT, length).tolist() for length in lengths]


def numbered_parts(documents: Sequence[Document], *, parts: int = 3,
                   holdout_every: int = 10) -> list[list[tuple[str, Document]]]:  # fmt: skip
    """Deal documents to parts, each `holdout_every`-th to the holdout split."""
    dealt: list[list[tuple[str, Document]]] = [[] for _ in range(parts)]
    for number, ids in enumerate(documents):
        split = "holdout" if number % holdout_every == 0 else "train"
        dealt[number * parts // len(documents)].append((split, ids))
    return dealt
