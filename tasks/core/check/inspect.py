"""What a dataset is: its configuration, counts, document lengths and runs."""

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.layout import RUNS_FOLDER, Split
from streaming_ext.dataset.manifest import Generation, ShuffleSummary, SplitSummary
from streaming_ext.dataset.record import BadDocument, PartRecord
from streaming_ext.dataset.schema import to_json
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.text.filters.filters import FilterName
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.reading.lists import documents_of
from tasks.core.reading.opened import naming, open_dataset, read_record
from tasks.core.reporting.length_classes import Lengths
from tasks.core.reporting.report import RunReport
from tasks.core.storage import Storage

_IO_THREADS = 8
_MAX_RUNS = 5
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
    """What `inspect` tells.

    Attributes:
        text_bytes: UTF-8 bytes of all texts.
        lengths: tokens a document, of all splits.
        parts: records of all parts, in order.
        runs: the latest runs, the last one first.
        shuffled: what a shuffled dataset was made of.
        merged: datasets that it was merged of; 0 where it was made of sources.
        manifest: content hash of the manifest.
        generations: what it was before it was extended, the oldest first.
    """

    dataset: str
    spec: DatasetSpec
    splits: dict[Split, SplitDescription]
    text_bytes: int
    lengths: Lengths
    parts: tuple[PartRecord, ...]
    runs: tuple[RunReport, ...]
    shuffled: ShuffleSummary | None = None
    merged: int = 0
    manifest: str = ""
    generations: tuple[Generation, ...] = ()

    @property
    def files(self) -> int:
        """Source files: a part may be a piece of one, or several."""
        if self.shuffled is not None:
            return self.shuffled.files
        return len({piece.source.url for part in self.parts for piece in part.made_of})

    @property
    def bad_documents(self) -> int:
        """Rows that could not be read."""
        if self.shuffled is not None:
            return self.shuffled.bad_documents
        return sum(part.bad_documents for part in self.parts)

    def dropped(self, name: FilterName) -> int:
        """Rows that a filter dropped."""
        if self.shuffled is not None:
            return self.shuffled.dropped_documents.get(name, 0)
        return sum(part.dropped_documents.get(name, 0) for part in self.parts)

    @property
    def bad_listed(self) -> list[BadDocument]:
        """The first of these."""
        if self.shuffled is not None:
            return list(self.shuffled.bad_listed)
        return [bad for part in self.parts for bad in part.bad_listed]

    @property
    def duplicate_documents(self) -> int:
        """Documents that were left out as copies of earlier ones."""
        return sum(part.duplicate_documents for part in self.parts)

    @property
    def duplicate_tokens(self) -> int:
        """Their tokens, with one end-of-text id each."""
        return sum(part.duplicate_tokens for part in self.parts)

    @property
    def documents(self) -> int:
        """Documents of all splits."""
        return sum(split.summary.documents for split in self.splits.values())

    @property
    def tokens(self) -> int:
        """Tokens of all splits, padding left out."""
        return sum(split.summary.tokens for split in self.splits.values())

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text a token, end-of-text ids left out."""
        return self.text_bytes / self.lengths.tokens if self.lengths.tokens else 0.0

    def facts(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        lengths = self.lengths
        quantiles = {f"p{share}": lengths.quantile(share / 100) for share in (50, 90, 99)}
        return {
            "dataset": self.dataset,
            "spec": self.spec.model_dump(mode="json"),
            "documents": self.documents,
            "tokens": self.tokens,
            "duplicate_documents": self.duplicate_documents,
            "duplicate_tokens": self.duplicate_tokens,
            "text_bytes": self.text_bytes,
            "bytes_per_token": self.bytes_per_token,
            "lengths": {"mean": lengths.mean, **quantiles, "longest": lengths.longest},
            "splits": {
                name: {
                    **split.summary.model_dump(mode="json"),
                    "raw_bytes": split.raw_bytes,
                    "stored_bytes": split.stored_bytes,
                }
                for name, split in self.splits.items()
            },
            "parts": [part.model_dump(mode="json") for part in self.parts],
            "runs": [run.model_dump(mode="json") for run in self.runs],
            **self._shuffled_facts(),
            **({"merged": self.merged} if self.merged else {}),
            "manifest": self.manifest,
            **self._grown_facts(),
        }

    def _grown_facts(self) -> dict[str, Any]:
        older = [
            {
                "manifest": each.manifest.xxh128,
                "parts": each.parts,
                "documents": sum(split.documents for split in each.splits.values()),
                "tokens": sum(split.tokens for split in each.splits.values()),
            }
            for each in self.generations
        ]
        return {"generations": older} if older else {}

    def _shuffled_facts(self) -> dict[str, Any]:
        found = self.shuffled
        return {} if found is None else {"shuffled": found.model_dump(mode="json")}


def describe(storage: Storage, *, generation: str | None = None) -> DatasetDescription:
    """Read what a dataset says of itself, and the lengths of its documents; no shard is read.

    Args:
        storage: where the dataset lies.
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
        with naming(files, record.documents.path):
            of_part.add(documents_of(files, record)["tokens"].to_numpy())
        return record, of_part

    records: list[PartRecord] = []
    with ThreadPoolExecutor(_IO_THREADS) as threads:
        for record, of_part in threads.map(look_at, range(len(manifest.parts))):
            records.append(record)
            lengths.include(of_part)
    return DatasetDescription(
        dataset=str(storage),
        spec=manifest.spec,
        splits={
            split: SplitDescription(
                summary=summary,
                raw_bytes=_sum(records, split, "raw_bytes"),
                stored_bytes=_sum(records, split, "size"),
            )
            for split, summary in manifest.splits.items()
        },
        text_bytes=manifest.text_bytes,
        lengths=lengths,
        parts=tuple(records),
        runs=tuple(_read_runs(files)),
        shuffled=manifest.shuffled,
        merged=len(manifest.merged),
        manifest=content_hash(to_json(manifest)),
        generations=manifest.generations,
    )


def _sum(records: Iterable[PartRecord], split: Split, field: str) -> int:
    return sum(
        getattr(shard, field)
        for record in records
        if split in record.splits
        for shard in record.splits[split].shards
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
