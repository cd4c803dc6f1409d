"""What a run did, for people: everything that may differ between two runs of the same work."""

import importlib.metadata
import platform
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from streaming_ext.layout import RUNS_FOLDER
from streaming_ext.manifest import to_json
from tasks.core.storage import Storage

_PACKAGES = ("shardmill", "prefect", "gigatoken", "tiktoken", "tokenizers", "pyarrow", "zstd")


class FailedFile(BaseModel):
    """A source file that could not be done, and why."""

    model_config = ConfigDict(frozen=True)

    part: int
    source: str
    step: str
    reason: str

    def __str__(self) -> str:
        reason = self.reason.removeprefix(f"{self.source}: ")
        return f"{self.source}: {self.step}: {reason}"


class PartTimes(BaseModel):
    """A source file that was done in this run; times in seconds, sizes in bytes."""

    model_config = ConfigDict(frozen=True)

    part: int
    source: str
    host: str = ""
    text_bytes: int
    tokens: int
    shard_bytes: int
    fetched_bytes: int = 0
    fetch_seconds: float = 0.0
    tokenize_seconds: float
    write_seconds: float


class RunReport(BaseModel):
    """One run. `seconds` counts from the first file to the published manifest.

    Attributes:
        files: source files of the dataset; `files_skipped` were done before.
        text_bytes, tokens, shard_bytes: of the files done in this run.
        published: the dataset is whole.
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

    @property
    def megabytes_per_second(self) -> float:
        """Text a second, in MB."""
        return self.text_bytes / 1e6 / self.seconds if self.seconds else 0.0


def installed_versions() -> dict[str, str]:
    """Versions of the packages that do the work."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def save_report(report: RunReport, storage: Storage) -> str:
    """Put a report beside the dataset; returns its path below the dataset's root."""
    path = f"{RUNS_FOLDER}/{report.began:%Y%m%dT%H%M%SZ}-{report.run[:8]}.json"
    storage.put(path, to_json(report))
    return path
