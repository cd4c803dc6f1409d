"""The record of a part: its sources, and every file made of them.

A part counts if its record exists. The record depends only on the source bytes and the
configuration: it holds no time and no host.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from streaming_ext.base.errors import option_name
from streaming_ext.format.duplicates import duplicates_path
from streaming_ext.format.filters import FilterName
from streaming_ext.format.layout import Split, documents_path, record_path
from streaming_ext.format.schema import (
    Count,
    FileRecord,
    Sealed,
    Value,
    require_all,
    to_json,
)
from streaming_ext.format.shard import Shard
from streaming_ext.format.spec import DatasetSpec

MOST_BAD_LISTED = 100  # per part
NOT_CHECKED: Literal["not checked"] = "not checked"


LOCAL_VERSION = "xxh128:"  # prefix of the version of a file on disk


class SourceIdentity(Value):
    """The bytes that a part was made from.

    Attributes:
        url: the path or URL of the file.
        size: the size of the file in bytes.
        version: the text that identifies its content, `xxh128:HEX` for a file on disk.
        content: `not checked` if the server offered nothing to compare the fetched bytes with, or
            only some bytes of the file were fetched.
    """

    url: str
    size: Count
    version: str
    content: Literal["not checked"] | None = None


class SplitPart(Value):
    """The samples and documents of one split that a part holds.

    Attributes:
        documents: the number of documents.
        tokens: the number of their ids, with one end-of-text id each and without padding.
        padding: the number of end-of-text ids that fill the last sample.
        shards: the shards, in the order of the token stream.
    """

    documents: Count
    tokens: Count
    padding: Count
    shards: tuple[Shard, ...]

    @property
    def samples(self) -> int:
        """Number of samples in all shards."""
        return sum(shard.samples for shard in self.shards)


class BadDocument(Value):
    """A row that could not be read and was left out.

    Attributes:
        file: URL of the source file.
        row: the number of the row in its span of the file.
        location: the location of the row, for messages.
        reason: the fault.
    """

    file: str
    row: Count
    location: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.location}: {self.reason}"


Span = tuple[Count, Count]  # bytes [start, end)


class SpanRecord(Value):
    """A span of a part that is not one whole file.

    Attributes:
        source: the file; for a span of a local file, its `version` covers only the bytes that are
            read for the span.
        span: the bytes of the file in which its documents begin; None for the whole file.
        rows: the number of rows of the span.
    """

    source: SourceIdentity
    span: Span | None = None
    rows: Count


def made_of_text(name: str, span: Span | None, size: int, *, files: int) -> str:
    """Name the sources of a part for people: the first file, its span or the number of others."""
    if files > 1:
        return f"{name} and {files - 1:,} more"
    if span is None:
        return name
    start, end = (f"{100 * byte / max(size, 1):.4g}" for byte in span)
    return f"{name} [{start}-{end}%]"


class RowCounts(Value):
    """Counts of rows of sources.

    Attributes:
        rows: the number of all rows; each is a document of a split, null, empty, bad or dropped.
        null_documents: the number of rows that hold no text.
        empty_documents: the number of rows whose text gives no token.
        bad_documents: the number of rows that cannot be read.
        dropped_documents: the number of rows that each filter dropped, by its name.
    """

    rows: Count
    null_documents: Count
    empty_documents: Count
    bad_documents: Count = 0
    dropped_documents: dict[FilterName, Count] = {}  # noqa: RUF012  (pydantic copies it)

    @staticmethod
    def total(counted: Iterable["RowCounts"]) -> "RowCounts":
        """Return the sums of several counts."""
        sums, dropped = Counter[str](), Counter[FilterName]()
        for each in counted:
            dropped.update(each.dropped_documents)
            sums.update({name: getattr(each, name) for name in _SUMMED})
        return RowCounts(**{name: sums[name] for name in _SUMMED}, dropped_documents=dict(dropped))

    @property
    def left_out(self) -> int:
        """Number of rows that gave no document."""
        lost = self.null_documents + self.empty_documents + self.bad_documents
        return lost + sum(self.dropped_documents.values())

    @property
    def no_text(self) -> bool:
        """True if there are rows, and all are null, empty or bad."""
        return 0 < self.rows == self.left_out and not any(self.dropped_documents.values())

    @property
    def left_out_text(self) -> str:
        """Numbers of rows that gave no document, with reasons; empty if all gave one."""
        found = {
            "without text": self.null_documents,
            "without tokens": self.empty_documents,
            "unreadable": self.bad_documents,
        } | {
            f"dropped by {option_name(name)}": count
            for name, count in self.dropped_documents.items()
        }
        return ", ".join(f"{count:,} {why}" for why, count in found.items() if count)


_SUMMED = ("rows", "null_documents", "empty_documents", "bad_documents")


class PartSummary(RowCounts):
    """The entry of a part in the manifest; `PartRecord` describes the other fields.

    Attributes:
        source: the first file of the part.
        span: the span of that file, if the part is a span.
        files: the number of files that the part is made of.
        files_not_checked: the number of files that were not checked, if the part has several files.
    """

    part: Count
    source: SourceIdentity
    span: Span | None = None
    files: Annotated[int, Field(gt=0)] = 1
    files_not_checked: Count = 0
    record: FileRecord
    text_bytes: Count
    duplicate_documents: Count = 0
    duplicate_tokens: Count = 0
    unchosen_documents: Count = 0

    @property
    def made_of_text(self) -> str:
        """The names of the sources of the part, for people."""
        return made_of_text(self.source.url, self.span, self.source.size, files=self.files)

    @property
    def not_checked(self) -> int:
        """Number of its files whose bytes could not be compared with anything."""
        return self.files_not_checked if self.files > 1 else int(self.source.content is not None)


class PartCounts(RowCounts):
    """The counts of a part, in its record and in the report of a run.

    Attributes:
        source: the first file of the part.
        spans: the spans of which the part is made, in order; empty for one whole file.
        text_bytes: UTF-8 bytes of all texts that were tokenized.
        marked_documents: the number of documents with an n-gram of an evaluation text, if these are
            only counted.
        evaluation_texts: the number of documents that hold an n-gram of an evaluation text, by the
            number of the text.
        bad_listed: the first bad documents.
    """

    part: Count
    spec: DatasetSpec
    source: SourceIdentity
    spans: tuple[SpanRecord, ...] = ()
    text_bytes: Count
    marked_documents: Count = 0
    evaluation_texts: dict[int, Count] = {}  # noqa: RUF012  (pydantic copies it)
    splits: dict[Split, SplitPart]
    bad_listed: Annotated[tuple[BadDocument, ...], Field(max_length=MOST_BAD_LISTED)] = ()

    @property
    def made_of(self) -> tuple[SpanRecord, ...]:
        """The spans of which the part is made, also for one whole file."""
        return self.spans or (SpanRecord(source=self.source, rows=self.rows),)

    @property
    def documents_kept(self) -> int:
        """Number of documents in the splits of the part."""
        return sum(split.documents for split in self.splits.values())

    @property
    def tokens_kept(self) -> int:
        """Number of tokens in these documents, with one end-of-text id each."""
        return sum(split.tokens for split in self.splits.values())

    @property
    def made_of_text(self) -> str:
        """The names of the sources of the part, for people."""
        span = self.spans[0].span if self.spans else None
        return made_of_text(self.source.url, span, self.source.size, files=len(self.made_of))


def _lies_in_its_file(span: SpanRecord) -> bool:
    begin, end = span.span or (0, 0)
    return begin <= end <= span.source.size


class PartRecord(PartCounts, Sealed):
    """The counts of a part, and every file that was made of its sources.

    Attributes:
        duplicate_documents: the number of rows that were left out as copies of earlier documents.
        duplicate_tokens: the number of their tokens, with one end-of-text id each.
        duplicates: the file that lists them, if copies are looked for.
        unchosen_documents: the number of rows that a subset leaves out without listing them,
            including copies that the original dataset left out. `text_bytes` of a subset is 0,
            because the bytes of the texts that stay are unknown.
    """

    documents: FileRecord
    duplicate_documents: Count = 0
    duplicate_tokens: Count = 0
    duplicates: FileRecord | None = None
    unchosen_documents: Count = 0

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        spec, first = self.spec, self.made_of[0]
        skipped = self.left_out
        documents = self.documents_kept + self.duplicate_documents + self.unchosen_documents
        listed = None if self.duplicates is None else self.duplicates.path
        expected = duplicates_path(self.part) if spec.lists_copies else None
        require_all(
            {
                "rows": documents + skipped == self.rows,
                "spans": self.source == first.source
                and self.rows == sum(each.rows for each in self.made_of)
                and all(map(_lies_in_its_file, self.spans))
                and (len(self.spans) < 2 or not any(each.span for each in self.spans)),
                "splits": {*self.splits} == {*spec.splits},
                "unchosen_documents": not self.unchosen_documents or spec.subset is not None,
                "bad_documents": spec.on_bad_document == "skip" or not self.bad_documents,
                "bad_listed": len(self.bad_listed) == min(self.bad_documents, MOST_BAD_LISTED),
                "dropped_documents": {*self.dropped_documents} == {*spec.drops},
                "spec.shuffle": spec.shuffle is None or not (self.spans or skipped),
                "documents": self.documents.path == documents_path(self.part),
                "duplicates": listed == expected
                and (expected is not None or not self.duplicate_documents)
                and self.duplicate_documents * 2 <= self.duplicate_tokens,
            }
        )
        require_all(
            {f"splits.{name}": self._holds(name, split) for name, split in self.splits.items()}
        )
        return self

    def _holds(self, name: Split, split: SplitPart) -> bool:
        """Return whether the counts and shards of a split agree with the specification."""
        form = self.spec.shard_format
        return (
            split.documents * 2 <= split.tokens
            and split.tokens + split.padding == split.samples * self.spec.sequence_length
            and all(
                shard.raw_name == form.shard_name(name, self.part, number)
                and shard.name.startswith(shard.raw_name)
                and shard.raw_bytes == form.raw_size(shard.samples)
                for number, shard in enumerate(split.shards)
            )
        )

    def files(self) -> list[FileRecord]:
        """Return every file of this part but the record itself."""
        shards = [
            FileRecord(path=f"{name}/{shard.name}", size=shard.size, xxh128=shard.hash)
            for name, split in self.splits.items()
            for shard in split.shards
        ]
        return [*shards, *self.lists]

    @property
    def lists(self) -> list[FileRecord]:
        """The files that list documents."""
        return [self.documents] if self.duplicates is None else [self.documents, self.duplicates]

    def summary(self) -> PartSummary:
        """Return the entry of this part in the manifest."""
        shared = PartSummary.model_fields.keys() & type(self).model_fields.keys()
        unchecked = sum(span.source.content is not None for span in self.spans)
        return PartSummary(
            **{name: getattr(self, name) for name in shared},
            span=self.spans[0].span if self.spans else None,
            files=len(self.made_of),
            files_not_checked=unchecked if len(self.spans) > 1 else 0,
            record=FileRecord.of(record_path(self.part), to_json(self)),
        )
