"""The result of a check: findings that name their file, counts of what was read, and progress."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ValidationError

from streaming_ext.base.errors import (
    NewerVersionError,
    ScratchError,
    ShardmillError,
    StoppedError,
    StorageDownError,
)
from streaming_ext.base.plain_faults import plain_faults
from streaming_ext.format.schema import differing

_MOST_OF_A_KIND = 3  # findings per file
_MOST_SHOWN = 3  # values that differ


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Finding:
    """A fault in a file.

    Attributes:
        file: the path relative to the dataset's root, or the URL of a source file.
        problem: the difference between the expected and the actual state, in words.
    """

    file: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """The amounts that were read and compared.

    Attributes:
        files: the number of files of the dataset that were read completely and hashed.
        bytes: the size of these files on storage.
        shards, samples, tokens, documents: the amounts whose ids were read, without padding.
        duplicates: the documents left out of the dataset as copies.
        compared: the texts of sources whose hashes were compared, with `--deep`.
        bad_documents: the documents left out of the dataset because they cannot be read.
        sources: the source files that were read again, with `--deep`.
        unchecked: the source files whose bytes were not checked, as their store offers no hash.
        source_rows: the rows of the source files, each hashed to find its split.
        retokenized: the documents tokenized again by the reference and compared id by id.
        retokenized_tokens: the ids of these documents.
    """

    files: int = 0
    bytes: int = 0
    shards: int = 0
    samples: int = 0
    tokens: int = 0
    documents: int = 0
    duplicates: int = 0
    compared: int = 0
    bad_documents: int = 0
    sources: int = 0
    unchecked: int = 0
    source_rows: int = 0
    retokenized: int = 0
    retokenized_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The result of a check, which took `seconds`; without findings if nothing is wrong."""

    findings: tuple[Finding, ...]
    seconds: float

    @property
    def sound(self) -> bool:
        """True if nothing was found."""
        return not self.findings


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetReport(Report):
    """The result of `verify`.

    Attributes:
        dataset: the dataset that was checked.
        parts: the number of parts of the dataset.
        checked: the amounts that were read.
        deep: True if documents were compared with their sources.
        requested: the least number of documents to compare.
        imported: True if the sources hold ids.
    """

    dataset: str
    parts: int
    checked: Checked
    deep: bool
    requested: int = 0
    imported: bool = False


class Outcome:
    """The findings and counts of one task while it runs; not shared between threads.

    Attributes:
        findings: the findings so far.
        sources, unchecked: the URLs of the files that `Checked` counts; parts may share a file.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.sources: set[str] = set()
        self.unchecked: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._kinds: Counter[tuple[str, str]] = Counter()

    @property
    def checked(self) -> Checked:
        """The amounts that were read and compared."""
        return Checked(**self._counts, sources=len(self.sources), unchecked=len(self.unchecked))

    def found(self, file: str, problem: str, *, kind: str = "") -> None:
        """Add a finding; of one kind, keep only the first few per file."""
        self._kinds[file, kind] += 1
        if not kind or self._kinds[file, kind] <= _MOST_OF_A_KIND:
            self.findings.append(Finding(file=file, problem=problem))

    @contextmanager
    def about(self, *files: str) -> Iterator[None]:
        """Turn an error in the block into a finding, and continue after the block.

        The finding names the file with whose name the error begins, or else the first file.

        Raises:
            StoppedError, StorageDownError, NewerVersionError, ScratchError: the check cannot
                continue.
        """
        try:
            yield
        except (StoppedError, StorageDownError, NewerVersionError, ScratchError):
            raise
        except ValidationError as error:
            self.found(files[0], f"not valid: {plain_faults(error)}")
        except (ShardmillError, OSError, ValueError) as error:
            named = next((file for file in files if str(error).startswith(f"{file}: ")), files[0])
            self.found(named, str(error).removeprefix(f"{named}: "))

    def sorted(self) -> tuple[Finding, ...]:
        """Return the findings by file, each once."""
        return tuple(sorted({*self.findings}))

    def is_sound(self, *folders: str) -> bool:
        """Return whether there is no finding in some files or folders."""
        return not any(finding.file.startswith(folders) for finding in self.findings)

    def count(self, **amounts: int) -> None:
        """Add to the counts; see `Checked`."""
        self._counts.update(amounts)

    def take(self, other: "Outcome") -> None:
        """Add the findings and counts of another outcome."""
        self.findings += other.findings
        self.sources |= other.sources
        self.unchecked |= other.unchecked
        self._counts += other._counts


def differences(listed: BaseModel, made: BaseModel) -> str:
    """Return the values that differ, each by its path, in words; "" if there are none."""
    old, new = (each.model_dump(mode="json") for each in (listed, made))
    found = [
        f"{path} is {was!r:.99}, made again {now!r:.99}" for path, was, now in differing(old, new)
    ]
    more = f"; and {len(found) - _MOST_SHOWN:,} more" if len(found) > _MOST_SHOWN else ""
    return "; ".join(found[:_MOST_SHOWN]) + more


class Progress:
    """The bytes that are done, and all that are expected.

    If an error leaves the block, threads that report to it end at their next report.
    """

    def __init__(self, listener: Callable[[int, int], None]) -> None:
        """Expect no bytes yet.

        Args:
            listener: a function that is called with the bytes done and all bytes.
        """
        self._listener, self._lock = listener, threading.Lock()
        self._done = self._expected = 0
        self._stopped = False

    def expect(self, num_bytes: int) -> None:
        """Expect more bytes."""
        self._expected += num_bytes

    def done(self, num_bytes: int) -> None:
        """Count bytes that are done.

        Raises:
            StoppedError: an error ended the check, perhaps in another thread.
        """
        with self._lock:
            if self._stopped:
                raise StoppedError("verifying was stopped")
            self._done += num_bytes
            try:
                self._listener(self._done, self._expected)
            except BaseException:
                self._stopped = True
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._stopped = error is not None
