"""What a check of a dataset says: findings that name their file, and how much was looked at."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Self


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        file: path relative to the dataset's root, or the URL of a source file.
        problem: what was expected and what was found.
    """

    file: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """How much was looked at.

    Attributes:
        files: of the dataset, read whole and hashed.
        bytes: their sizes on storage.
        shards, samples, tokens, documents: whose ids were looked at, padding left out.
        duplicates: left out of the dataset as copies.
        compared: texts of sources that were compared with all others, with `--deep`.
        bad_documents: left out of the dataset, for they cannot be read.
        sources: source files read again, with `--deep`.
        unchecked: those of them whose bytes nothing was there to check by: their store offers no
            hash.
        source_rows: rows of those, each hashed to see on which side of the holdout it belongs.
        retokenized: documents tokenized again by the reference and compared id by id.
        retokenized_tokens: their ids.
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

    def __add__(self, other: Self) -> "Checked":
        return Checked(**{f.name: getattr(self, f.name) + getattr(other, f.name)
                          for f in fields(self)})  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The outcome of `verify`: `findings` is empty where nothing is wrong.

    Attributes:
        parts: parts of the dataset.
        deep: whether documents were compared with their sources.
        asked: how many documents were to be tokenized again, or their ids read again.
        imported: whether the sources hold ids.
        seconds: time that it took.
    """

    dataset: str
    parts: int
    findings: tuple[Finding, ...]
    checked: Checked
    deep: bool
    seconds: float
    asked: int = 0
    imported: bool = False

    @property
    def sound(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


class Outcome:
    """Findings and counts of one piece of work, while it is going on; not shared by threads.

    Attributes:
        sources, unchecked: URLs of the files that `Checked` counts; several parts may be of one.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._counts = Checked()
        self.sources: set[str] = set()
        self.unchecked: set[str] = set()

    @property
    def checked(self) -> Checked:
        """How much was looked at."""
        return replace(self._counts, sources=len(self.sources), unchecked=len(self.unchecked))

    def found(self, file: str, problem: str) -> None:
        """Something is wrong with `file`."""
        self.findings.append(Finding(file=file, problem=problem))

    def count(self, **amounts: int) -> None:
        """Add to what was looked at; see `Checked`."""
        self._counts += Checked(**amounts)

    def take(self, others: Iterable["Outcome"]) -> None:
        """Add what other pieces of work found."""
        for other in others:
            self.findings += other.findings
            self._counts += other._counts
            self.sources |= other.sources
            self.unchecked |= other.unchecked
