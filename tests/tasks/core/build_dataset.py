"""Datasets made by the pipeline itself, without Prefect, and forged ones whose hashes are right."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.format.compression import Compression
from streaming_ext.format.layout import MANIFEST, Split, documents_path, index_path, record_path
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.record import PartRecord, SplitPart
from streaming_ext.format.schema import FileRecord, content_hash, from_json, to_json
from streaming_ext.format.shard import Shard
from streaming_ext.store import LocalStorage, open_storage
from streaming_ext.writing.publish import split_indexes
from tasks.core.check.findings import Report
from tasks.core.check.verify import verify
from tasks.core.config import ShardConfig
from tasks.core.shard.plan import plan_shard
from tests.conftest import small_vocabulary
from tests.tasks.core.doubles import stream_in, write_source
from tests.tasks.core.running import make


def build_dataset(
    folder: Path,
    documents_per_file: Sequence[Sequence[str | None]],
    **config: Any,
) -> Path:
    """Shard lists of documents, one per source file, and return the root of the dataset.

    Sources go to `folder`/sources, the dataset to `folder`/dataset. Fields of `ShardConfig` that
    `config` does not name default to small samples and shards, and a small vocabulary.
    """
    sources = folder / "sources"
    for number, documents in enumerate(documents_per_file):
        write_source(sources / f"{number:03}.parquet", documents, row_group_size=7)
    return build_from(sources, folder / "dataset", **config)


def build_from(sources: Path, root: Path, **config: Any) -> Path:
    """Shard the files of a folder and return the root of the dataset; see `build_dataset`."""
    return build_as(config_of(sources, root, **config))


def config_of(
    sources: Path, root: Path, *, kind: type[ShardConfig] = ShardConfig, **config: Any
) -> ShardConfig:
    """Return the configuration of a small dataset; see `build_dataset`."""
    settings = {
        "tokenizer": str(small_vocabulary()),
        "pattern": "gpt2",
        "sequence_length": 64,
        "holdout_fraction": 0.2,
        "shard_size": 4096,
        "engine": "reference",
        "workers": 1,
        **config,
    }
    return kind(sources=(str(sources),), output=str(root), **settings)


def build_as(config: ShardConfig) -> Path:
    """Shard as a configuration says, and return the root of the dataset."""
    storage = open_storage(config.output)
    storage.create()
    make(plan_shard(config, storage), storage)
    return Path(config.output)


def found_in(root: Path, **options: Any) -> list[str]:
    """Return the files that `verify` names."""
    return [finding.file for finding in verify(LocalStorage(root), **options).findings]


def require_sound(root: Path, **options: Any) -> Report:
    """Check that `verify` finds nothing, and return its report."""
    report = verify(LocalStorage(root), **options)
    assert report.findings == ()
    return report


def manifest_of(root: Path) -> Manifest:
    return from_json(Manifest, (root / MANIFEST).read_bytes(), where=MANIFEST)


def streams_of(root: Path) -> dict[Split, list[int]]:
    """Return the ids of each split, part after part, without padding."""
    made = Forger(root)
    ids: dict[Split, list[int]] = {}
    for part, record in made.records.items():
        for split, held in record.splits.items():
            ids.setdefault(split, []).extend(made.stream(part, split)[: held.tokens].tolist())
    return ids


def as_written(manifest: dict[str, Any]) -> bytes:
    """Return a manifest as the bytes of its file."""
    return (json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


class Forger:
    """Changes what a dataset says or holds, and then makes every hash and sum right again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest = manifest_of(root)
        self.spec = self.manifest.spec
        self.records = {
            part.part: from_json(
                PartRecord, (root / part.record.path).read_bytes(), where=part.record.path
            )
            for part in self.manifest.parts
        }

    def shard_path(self, part: int, split: Split, number: int = 0) -> str:
        """Return the path of a shard relative to the root."""
        return f"{split}/{self.records[part].splits[split].shards[number].name}"

    def stream(self, part: int, split: Split) -> npt.NDArray[Any]:
        """Return a copy of all ids of a part's split, padding included."""
        return stream_in(self.root, self.spec, split, self.records[part].splits[split])

    def set_stream(self, part: int, split: Split, ids: npt.NDArray[Any], **counts: int) -> None:
        """Write other shards; `counts` are more fields of the record to change."""
        form, held = self.spec.shard_format, self.records[part].splits[split]
        for shard in held.shards:
            (self.root / split / shard.name).unlink()
        # samples: (num_samples, sequence_length)
        samples = ids.astype(form.dtype).reshape(-1, form.sequence_length)
        shards = []
        for first in range(0, len(samples), form.samples_per_shard):
            chosen = samples[first : first + form.samples_per_shard]
            raw = form.header(len(chosen)) + chosen.tobytes()
            shards.append(self.put_shard(part, split, len(shards), len(chosen), raw))
        changed = held.model_copy(update={"shards": tuple(shards), **counts})
        self.set_split(part, split, changed)

    def put_shard(self, part: int, split: Split, number: int, samples: int, raw: bytes) -> Shard:
        """Write one shard with any content."""
        name = self.spec.shard_format.shard_name(split, part, number)
        codec = Compression.parse(self.spec.compression)
        packed = None if codec is None else codec.compress(raw)
        shard = Shard(
            samples=samples,
            raw_name=name,
            raw_bytes=len(raw),
            raw_hash=content_hash(raw),
            zip_name=None if codec is None else f"{name}.{codec.codec}",
            zip_bytes=None if packed is None else len(packed),
            zip_hash=None if packed is None else content_hash(packed),
        )
        (self.root / split / shard.name).write_bytes(raw if packed is None else packed)
        return shard

    def set_split(self, part: int, split: Split, held: SplitPart) -> None:
        splits = {**self.records[part].splits, split: held}
        self.change(part, splits=splits)

    def change(self, part: int, /, **fields: Any) -> None:
        """Change fields of a record without validation."""
        self.records[part] = self.records[part].model_copy(update=fields)

    def documents(self, part: int) -> dict[str, list[Any]]:
        """Return the provenance as lists."""
        columns: dict[str, list[Any]] = pq.read_table(self.root / documents_path(part)).to_pydict()
        return columns

    def set_documents(self, part: int, table: pa.Table | dict[str, list[Any]]) -> None:
        """Write another provenance."""
        path = documents_path(part)
        if isinstance(table, dict):
            kinds = {"row": pa.int64(), "split": pa.string(), "tokens": pa.uint32()}
            table = pa.table({name: pa.array(table[name], kinds[name]) for name in kinds})
        pq.write_table(table, self.root / path)
        self.change(part, documents=FileRecord.of(path, (self.root / path).read_bytes()))

    def listed(self, part: int) -> list[tuple[int, Split, npt.NDArray[Any]]]:
        """Return row, split and ids of each document."""
        streams = {split: self.stream(part, split) for split in self.records[part].splits}
        found = []
        for row, split, tokens in zip(*self.documents(part).values(), strict=True):
            ids, streams[split] = np.split(streams[split], [tokens])
            found.append((row, split, ids))
            streams[split] = streams[split][1:]  # after the end-of-text id
        return found

    def set_listed(self, part: int, documents: list[tuple[int, Split, npt.NDArray[Any]]]) -> None:
        """Write provenance, shards and counts for other documents."""
        eot_id, length = self.spec.tokenizer.eot_id, self.spec.sequence_length
        rows, splits, ids = zip(*documents, strict=True)
        tokens = [len(each) for each in ids]
        self.set_documents(part, {"row": [*rows], "split": [*splits], "tokens": tokens})
        for split in self.records[part].splits:
            own = [np.append(ids, eot_id) for _, each, ids in documents if each == split]
            stream = np.concatenate(own)
            padding = -len(stream) % length
            whole = np.append(stream, np.full(padding, eot_id))
            counts = {"documents": len(own), "tokens": len(stream), "padding": padding}
            self.set_stream(part, split, whole, **counts)

    def seal(self, edit: Callable[[dict[str, Any]], object] = lambda manifest: None) -> None:
        """Write records, indexes and manifest anew; `edit` changes the manifest at the end."""
        parts = [self.records[part] for part in sorted(self.records)]
        for part in parts:
            (self.root / record_path(part.part)).write_bytes(to_json(part))
        splits = {}
        for split, (summary, index) in split_indexes(self.spec, parts).items():
            (self.root / index_path(split)).write_bytes(index)
            splits[split] = summary
        manifest = self.manifest.model_copy(
            update={"parts": tuple(part.summary() for part in parts), "splits": splits}
        )
        value = json.loads(to_json(manifest))
        edit(value)
        (self.root / MANIFEST).write_bytes(as_written(value))
