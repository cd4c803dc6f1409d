"""What the steps of a part answer."""

from pathlib import Path

from streaming_ext.format.filters import FilterName
from streaming_ext.format.layout import Split
from streaming_ext.format.record import (
    BadDocument,
    PartSummary,
    SourceIdentity,
    SpanRecord,
    SplitPart,
)
from tasks.core.shuffle.spills import Spill
from tasks.core.workers.messages import JobProgress, Message

RESULT_FILE = "tokenized.json"


class FetchedPart(Message):
    """The spans of a part on this machine.

    Attributes:
        paths: where each lies; on scratch, or in a cache that is not ours.
        fetched_bytes: that came over the wire for them.
    """

    paths: tuple[str, ...]
    fetched_bytes: int
    seconds: float


class TokenizedPart(Message):
    """A part on scratch, packed; see `PartRecord` for the words.

    Attributes:
        spans: left out where a part that is on scratch is told of elsewhere.
        audited_documents: documents tokenized twice and compared.
        engine: which engine it was.
        seconds: time the tokenizing took.
        ended: when it ended, in seconds since 1970.
        span_documents: documents of each span, where they are to be shuffled.
        whole_version, spills, digests: see `SpillRecord`; none where there is one phase.
        duplicate_documents, duplicate_tokens: left out as copies; see `PartRecord`.
    """

    part: int
    source: SourceIdentity
    spans: tuple[SpanRecord, ...] = ()
    rows: int
    null_documents: int
    empty_documents: int
    bad_documents: int = 0
    bad_listed: tuple[BadDocument, ...] = ()
    dropped_documents: dict[FilterName, int] = {}  # noqa: RUF012  (pydantic copies it)
    text_bytes: int
    splits: dict[Split, SplitPart]
    audited_documents: int
    engine: str
    seconds: float
    ended: float = 0.0
    span_documents: tuple[int, ...] = ()
    whole_version: str | None = None
    spills: tuple[Spill, ...] | None = None
    digests: tuple[Spill, ...] = ()
    duplicate_documents: int = 0
    duplicate_tokens: int = 0

    def save(self, folder: Path) -> None:
        """Put it beside the files of the part, last: with it the part is whole on scratch."""
        (folder / RESULT_FILE).write_bytes(self.model_dump_json().encode())

    @classmethod
    def saved(cls, folder: Path) -> "TokenizedPart":
        """What `save` put there."""
        return cls.model_validate_json((folder / RESULT_FILE).read_bytes())

    def brief(self) -> "TokenizedPart":
        """The same without what only those need who have it on scratch."""
        spills = None if self.spills is None else ()
        return self.model_copy(
            update={"spans": (), "span_documents": (), "spills": spills, "digests": ()}
        )

    @property
    def tokens(self) -> int:
        """Tokens of all splits."""
        return sum(split.tokens for split in self.splits.values())

    @property
    def documents(self) -> int:
        """Documents of all splits."""
        return sum(split.documents for split in self.splits.values())

    @property
    def progress(self) -> JobProgress:
        """How far tokenizing is: done."""
        return JobProgress(fraction=1.0, text_bytes=self.text_bytes, tokens=self.tokens)


class WrittenPart(Message):
    """A part on the output, recorded; of a part of two phases, its spills.

    Attributes:
        shards: files that hold its tokens.
    """

    summary: PartSummary | None = None
    shards: int
    shard_bytes: int
    seconds: float
