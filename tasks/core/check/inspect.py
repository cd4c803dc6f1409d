"""The description of a dataset: its configuration, counts, document lengths and runs."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.layout import RUNS_FOLDER, Split
from streaming_ext.format.manifest import Manifest, ShuffleSummary, SplitSummary
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import content_hash, to_json
from streaming_ext.store import Storage
from tasks.core.check.near import NearDescription, describe_near
from tasks.core.reading.dataset_files import (
    DatasetFiles,
    open_dataset,
    read_record,
)
from tasks.core.reading.documents import listed_documents
from tasks.core.reporting.lengths import Lengths
from tasks.core.reporting.report import RunReport

_MAX_RUNS = 5
_COUNTS = ("tokens", "duplicate_documents", "duplicate_tokens", "text_bytes")
_REPORT = re.compile(rf"{RUNS_FOLDER}/[^/]+\.json")
_MAX_RUN_BYTES = 2**26


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitDescription:
    """A split: the manifest's sums, and bytes of its shards unpacked and as they are stored."""

    summary: SplitSummary
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetDescription:
    """The description that `inspect` prints.

    Attributes:
        lengths: tokens per document, of all splits.
        parts: records of all parts, in order.
        runs: the latest runs, the last one first.
        near: the near copies that were left out, if they are listed.
    """

    dataset: str
    manifest: Manifest
    lengths: Lengths
    parts: tuple[PartRecord, ...]
    runs: tuple[RunReport, ...]
    near: NearDescription | None = None

    @property
    def generation(self) -> str:
        """Content hash of the manifest."""
        return content_hash(to_json(self.manifest))

    @property
    def splits(self) -> dict[Split, SplitDescription]:
        """Each split."""
        described = {}
        for split, summary in self.manifest.splits.items():
            held = [part.splits[split] for part in self.parts if split in part.splits]
            shards = [shard for each in held for shard in each.shards]
            described[split] = SplitDescription(
                summary=summary,
                raw_bytes=sum(shard.raw_bytes for shard in shards),
                stored_bytes=sum(shard.size for shard in shards),
            )
        return described

    @property
    def counted(self) -> Sequence[ShuffleSummary | PartRecord]:
        """The counters of rows that are left out: the summary of all sources, or each part."""
        return self.parts if self.manifest.shuffled is None else [self.manifest.shuffled]

    @property
    def files(self) -> int:
        """Source files: a part may be a span of one, or several."""
        if self.manifest.shuffled is not None:
            return self.manifest.shuffled.files
        return len({source_span.source.url for part in self.parts for source_span in part.made_of})

    @property
    def documents(self) -> int:
        """Documents of all splits."""
        return sum(split.documents for split in self.manifest.splits.values())

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text a token, end-of-text ids left out."""
        return self.manifest.text_bytes / self.lengths.tokens if self.lengths.tokens else 0.0

    def facts(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        manifest = self.manifest
        facts = {
            "dataset": self.dataset,
            "spec": manifest.spec.model_dump(mode="json", exclude_defaults=True),
            "documents": self.documents,
            **{name: getattr(manifest, name) for name in _COUNTS},
            "bytes_per_token": self.bytes_per_token,
            "lengths": self.lengths.figures(),
            "splits": {
                name: {
                    **split.summary.model_dump(mode="json"),
                    "raw_bytes": split.raw_bytes,
                    "stored_bytes": split.stored_bytes,
                }
                for name, split in self.splits.items()
            },
            "parts": [part.model_dump(mode="json", exclude_defaults=True) for part in self.parts],
            "runs": [run.model_dump(mode="json") for run in self.runs],
            "manifest": self.generation,
        }
        if manifest.shuffled is not None:
            facts["shuffled"] = manifest.shuffled.model_dump(mode="json", exclude_defaults=True)
        if self.near is not None:
            facts["near"] = asdict(self.near)
        if manifest.added:
            facts["added"] = [*manifest.columns[len(manifest.spec.keep_columns) :]]
        if manifest.merged:
            facts["merged"] = len(manifest.merged)
        if manifest.generations:
            facts["generations"] = [each.model_dump(mode="json") for each in manifest.generations]
        return facts


def describe(storage: Storage, *, generation: str | None = None) -> DatasetDescription:
    """Read what a dataset says of itself, and the lengths of its documents; no shard is read.

    Args:
        storage: the storage of the dataset.
        generation: see `open_dataset`.

    Raises:
        NotADatasetError: there is no published dataset at this place.
        CorruptDatasetError: a file that is read is missing or damaged.
    """
    files, manifest = open_dataset(storage, generation=generation)
    lengths = Lengths()

    def look_at(part: int) -> tuple[PartRecord, Lengths]:
        record = read_record(files, manifest, part)
        of_part = Lengths()
        of_part.add(listed_documents(files, record)["tokens"].to_numpy())
        return record, of_part

    records: list[PartRecord] = []
    for record, of_part in mapped_ahead(look_at, range(len(manifest.parts))):
        records.append(record)
        lengths.include(of_part)
    return DatasetDescription(
        dataset=str(storage),
        manifest=manifest,
        lengths=lengths,
        parts=tuple(records),
        runs=tuple(_read_runs(files)),
        near=describe_near(storage, generation=generation),
    )


def _read_runs(files: DatasetFiles) -> Iterator[RunReport]:
    """The latest reports; what cannot be read is left out, for nothing depends on it."""
    paths = [
        path
        for path, size in files.sizes.items()
        if _REPORT.fullmatch(path) and size < _MAX_RUN_BYTES
    ]
    for path in sorted(paths, reverse=True)[:_MAX_RUNS]:
        try:
            yield RunReport.model_validate_json(files.storage.read(path))
        except (OSError, ValidationError):
            continue
