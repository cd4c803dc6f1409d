"""A small dataset made of lists of documents."""

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from streaming_ext.format.layout import MANIFEST, SPLITS, documents_path, index_path
from streaming_ext.format.manifest import Manifest, SplitSummary
from streaming_ext.format.mds import MdsFormat
from streaming_ext.format.record import PartRecord, SourceIdentity
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.shard import token_dtype
from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.writing.part_files import DocumentsFile
from streaming_ext.writing.publish import merged_index
from streaming_ext.writing.split_writer import Memory, SplitWriter

EOT = 99
Document = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Built:
    """A dataset with what a test expects of it: the stream and the documents of each split.

    A document is identified by its source file and row, and ends with its end-of-text id.
    """

    root: Path
    streams: dict[str, np.ndarray]
    documents: dict[str, dict[tuple[str, int], list[int]]]
    manifest: Manifest


def spec_of(
    *,
    sequence_length: int,
    compression: str,
    shard_samples: int,
    vocab_size: int = 100,
    fingerprint: str = "f0",
    keep_columns: tuple[str, ...] = (),
) -> DatasetSpec:
    """Return a specification whose shards hold `shard_samples` samples each."""
    # The header holds the shard size too; a number this long leaves enough room.
    form = MdsFormat(
        sequence_length=sequence_length,
        dtype=token_dtype(vocab_size),
        shard_size=10**6,
        compression=compression,
    )
    return DatasetSpec(
        text_column="text",
        sequence_length=sequence_length,
        holdout_fraction=0.1,
        holdout_seed=1,
        shard_size=form.raw_size(shard_samples),
        compression=compression,
        keep_columns=keep_columns,
        tokenizer=TokenizerIdentity(
            kind="tiktoken",
            name="test",
            vocab_size=vocab_size,
            eot_id=EOT,
            eot_token="<|endoftext|>",
            fingerprint=fingerprint,
        ),
    )


def build(
    root: Path,
    parts: Sequence[Sequence[tuple[str, Document]]],
    *,
    sequence_length: int = 8,
    compression: str = "zstd:1",
    shard_samples: int = 4,
    columns: Mapping[str, Callable[[Document], Any]] = {},
    **identity: Any,
) -> Built:
    """Write a dataset; each part is a list of (split, token ids), one per row of its source.

    Kept columns have the values that `columns` computes from the ids of each document.
    The expected streams are put together here, independently of the writer.
    """
    spec = spec_of(
        sequence_length=sequence_length,
        compression=compression,
        shard_samples=shard_samples,
        keep_columns=tuple(columns),
        **identity,
    )
    form = spec.shard_format
    streams: dict[str, list[int]] = {split: [] for split in SPLITS}
    documents: dict[str, dict[tuple[str, int], list[int]]] = {split: {} for split in SPLITS}
    records = []
    for split in SPLITS:
        shutil.rmtree(root / split, ignore_errors=True)

    def write(path: str, data: bytes) -> FileRecord:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        return FileRecord.of(path, data)

    for number, rows in enumerate(parts):
        url, splits = f"mem://source-{number}.parquet", {}
        for split in SPLITS:
            held = {(url, row): [*ids, EOT] for row, (of, ids) in enumerate(rows) if of == split}
            documents[split] |= held
            stream = list(itertools.chain(*held.values()))
            writer = SplitWriter(root / split, number, spec, Memory())
            writer.add(np.array(stream, form.id_type), len(held))
            splits[split] = writer.finish()
            streams[split] += [*stream, *[EOT] * (-len(stream) % sequence_length)]
        listed = root / documents_path(number)
        table = DocumentsFile(listed, spec)
        table.add(
            np.arange(len(rows)),
            np.array([len(ids) for _, ids in rows], np.int64),
            np.array([split == "holdout" for split, _ in rows], bool),
            values=[kept([value(ids) for _, ids in rows]) for value in columns.values()],
        )
        table.close()
        record = PartRecord(
            part=number,
            spec=spec,
            source=SourceIdentity(url=url, size=1, version="v"),
            rows=len(rows),
            null_documents=0,
            empty_documents=0,
            text_bytes=len(rows),
            splits=splits,
            documents=FileRecord.of(documents_path(number), listed.read_bytes()),
        )
        records.append(record)
        write(f"parts/{number:05}.json", to_json(record))
    summaries = {}
    for split in SPLITS:
        of_parts = [record.splits[split] for record in records]
        sums = {
            name: sum(getattr(each, name) for each in of_parts)
            for name in ("documents", "tokens", "padding", "samples")
        }
        index = write(index_path(split), merged_index(split, records, spec))
        shards = sum(len(each.shards) for each in of_parts)
        summaries[split] = SplitSummary(index=index, shards=shards, **sums)
    manifest = Manifest(
        spec=spec, parts=tuple(r.summary() for r in records), splits=summaries, tokenizer_files=()
    )
    write(MANIFEST, to_json(manifest))
    flat = {split: np.array(ids, form.id_type) for split, ids in streams.items()}
    return Built(root=root, streams=flat, documents=documents, manifest=manifest)


def kept(values: list[Any]) -> pa.Array:
    """Return the values of a column in the type in which they are kept."""
    column = pa.array(values)
    return column.cast(pa.large_string()) if pa.types.is_string(column.type) else column


def some_documents(count: int, *, seed: int = 0, longest: int = 30) -> list[list[int]]:
    """Return documents of 1 to `longest` ids below the end-of-text id."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, count)
    return [rng.integers(0, EOT, length).tolist() for length in lengths]


def build_some(root: Path, count: int, *, seed: int = 0, **options: Any) -> Built:
    """Write a dataset of some documents in three parts."""
    return build(root, numbered_parts(some_documents(count, seed=seed)), **options)


def numbered_parts(
    documents: Sequence[Document], *, parts: int = 3, holdout_every: int = 10
) -> list[list[tuple[str, Document]]]:
    """Deal documents to parts, each `holdout_every`-th to the holdout split."""
    dealt: list[list[tuple[str, Document]]] = [[] for _ in range(parts)]
    for number, ids in enumerate(documents):
        split = "holdout" if number % holdout_every == 0 else "train"
        dealt[number * parts // len(documents)].append((split, ids))
    return dealt
