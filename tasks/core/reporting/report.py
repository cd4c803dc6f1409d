"""The report of a run: everything that may differ between two runs of the same work."""

import importlib.metadata
import platform
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from streaming_ext.format.layout import RUNS_FOLDER
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.record import BadDocument, PartRecord
from tasks.core.shuffle.spills import SpillRecord

MOST_BAD_SHOWN = 5  # documents per part; its record lists more
_PACKAGES = (
    "shardmill",
    "prefect",
    "gigatoken",
    "tiktoken",
    "tokenizers",
    "sentencepiece",
    "pyarrow",
    "zstd",
)


class FailedFile(BaseModel):
    """A part that failed, and why."""

    model_config = ConfigDict(frozen=True)

    part: int
    source: str
    step: str
    reason: str
    host: str = ""

    @property
    def reason_alone(self) -> str:
        """The reason, without the name of the source at its start."""
        return self.reason.removeprefix(f"{self.source}: ")

    def __str__(self) -> str:
        return f"{self.source}: {self.step}: {self.reason_alone}"


class ReportedCounts(BaseModel):
    """The counts of a part of this run or an earlier one; sizes in bytes.

    Attributes:
        documents: the rows that became documents; the others are null, bad, dropped or empty.
        bad_listed: the first bad rows.
        dropped_documents: the rows that each filter dropped, by its name.
        marked_documents, evaluation_texts: see `PartCounts`.
    """

    model_config = ConfigDict(frozen=True)

    part: int
    source: str
    host: str = ""
    text_bytes: int
    tokens: int
    documents: int = 0
    null_documents: int = 0
    empty_documents: int = 0
    bad_documents: int = 0
    bad_listed: tuple[BadDocument, ...] = ()
    dropped_documents: dict[str, int] = {}
    marked_documents: int = 0
    evaluation_texts: dict[int, int] = {}

    @property
    def rows(self) -> int:
        """All rows of the part."""
        lost = self.null_documents + self.empty_documents + self.bad_documents
        return self.documents + lost + sum(self.dropped_documents.values())

    @classmethod
    def of(cls, record: PartRecord | SpillRecord) -> "ReportedCounts":
        """Return the counts of a record."""
        return cls(
            part=record.part,
            source=record.made_of_text,
            text_bytes=record.text_bytes,
            tokens=record.tokens_kept,
            documents=record.documents_kept,
            null_documents=record.null_documents,
            empty_documents=record.empty_documents,
            bad_documents=record.bad_documents,
            bad_listed=record.bad_listed[:MOST_BAD_SHOWN],
            dropped_documents=dict(record.dropped_documents),
            marked_documents=record.marked_documents,
            evaluation_texts=dict(record.evaluation_texts),
        )


class PartTimes(ReportedCounts):
    """A part that this run did; times in seconds.

    Attributes:
        host: the host that did it.
        engine: the engine that tokenized it, in words; empty if none did.
        tokenized_at: the time when its tokenization ended, in seconds since 1970.
    """

    engine: str = ""
    tokenized_at: float = 0.0
    shard_bytes: int
    fetched_bytes: int = 0
    fetch_seconds: float = 0.0
    tokenize_seconds: float = 0.0
    write_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """The time of all steps, without waiting for a worker."""
        return self.fetch_seconds + self.tokenize_seconds + self.write_seconds

    @property
    def began_at(self) -> float:
        """The time when the work began, if no step had waited, in seconds since 1970."""
        return self.tokenized_at - self.tokenize_seconds - self.fetch_seconds


class RunReport(BaseModel):
    """The report of one run; `seconds` counts from the first part to the published manifest.

    Attributes:
        files: the number of parts of the dataset; earlier runs did `files_skipped` of them.
        text_bytes, tokens, shard_bytes: the sizes and tokens of the parts that this run did.
        published: True if the dataset is complete.
        sources_not_checked: the number of source files without a hash to check their bytes.
        merged: the parts that the second of two phases made in this run.
        merge_seconds: the time of that phase.
        duplicate_documents, duplicate_tokens: the documents and tokens left out as copies, once the
            dataset is published; the counts of `parts` include them.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    began: datetime
    seconds: float
    host: str
    cores: int | None
    workers: int
    versions: dict[str, str]
    engine: str | None
    output: str
    files: int
    files_skipped: int
    files_done: int
    failed: tuple[FailedFile, ...]
    text_bytes: int
    tokens: int
    shard_bytes: int
    published: bool
    parts: tuple[PartTimes, ...]
    sources_not_checked: int = 0
    merged: tuple[PartTimes, ...] = ()
    merge_seconds: float = 0.0
    duplicate_documents: int = 0
    duplicate_tokens: int = 0

    @property
    def megabytes_per_second(self) -> float:
        """Text per second of this run, in MB."""
        return self.text_bytes / 1e6 / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text per token of this run, without end-of-text ids."""
        tokens = self.tokens - sum(part.documents for part in self.parts)
        return self.text_bytes / tokens if tokens else 0.0


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that do the work."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def left_out_counts(manifest: Manifest) -> dict[str, int]:
    """Return the counts of a report that only the manifest of a published dataset has."""
    return {
        "sources_not_checked": manifest.not_checked,
        "duplicate_documents": manifest.duplicate_documents,
        "duplicate_tokens": manifest.duplicate_tokens,
    }


def report_path(report: RunReport, suffix: str) -> str:
    """Return the path of a report on the output."""
    return f"{RUNS_FOLDER}/{report.began:%Y%m%dT%H%M%SZ}-{report.run[:8]}{suffix}"
