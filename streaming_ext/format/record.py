"""The record of a part: its sources, and every file made of them.

A part counts when its record exists. It is a function of the source bytes and the configuration
alone: it holds no time and no host.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from streaming_ext.format.duplicates import duplicates_path
from streaming_ext.format.filters import FilterName
from streaming_ext.format.layout import Split, documents_path, record_path
from streaming_ext.format.schema import (
    Brief,
    Count,
    FileRecord,
    Sealed,
    Value,
    to_json,
)
from streaming_ext.format.shard import Shard
from streaming_ext.format.spec import DatasetSpec

MOST_BAD_LISTED = 100  # of a part: who has more needs another look at the file
NOT_CHECKED: Literal["not checked"] = "not checked"


LOCAL_VERSION = "xxh128:"  # begins the version of a file on disk


class SourceIdentity(Brief):
    """Which bytes a part was made from.

    Attributes:
        url: where the file was found.
        size: in bytes.
        version: what pins its content, `xxh128:HEX` for a file on disk.
        content: `not checked` if the server offered nothing to compare the bytes with that
            came, or only some of the file were fetched.
    """

    url: str
    size: Count
    version: str
    content: Literal["not checked"] | None = None


class SplitPart(Value):
    """What a part holds of one split.

    Attributes:
        documents: how many.
        tokens: their ids and one end-of-text id each, padding left out.
        padding: end-of-text ids that fill up the last sample.
        shards: in the order of the token stream.
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
        row: its number there.
        location: where that is, for messages.
        reason: what is wrong.
    """

    file: str
    row: Count
    location: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.location}: {self.reason}"


Span = tuple[Count, Count]  # bytes [start, end)


class SpanRecord(Brief):
    """A span of a part that is not one whole file.

    Attributes:
        source: the file; of a span of a local one, `version` is of the bytes that it takes to read
            the span.
        span: what begins in these bytes of it; None for the whole file.
        rows: of the span.
    """

    source: SourceIdentity
    span: Span | None = None
    rows: Count

    @model_validator(mode="after")
    def _lies_in_the_file(self) -> Self:
        if self.span is not None and not self.span[0] <= self.span[1] <= self.source.size:
            raise ValueError(f"bytes {self.span} of a file of {self.source.size}")
        return self


def made_of_text(name: str, span: Span | None, size: int, *, files: int) -> str:
    """What a part is made of, for people: its first file, with what of it or how many more."""
    if files > 1:
        return f"{name} and {files - 1:,} more"
    if span is None:
        return name
    start, end = (f"{100 * byte / max(size, 1):.4g}" for byte in span)
    return f"{name} [{start}-{end}%]"


class LeftOut(Brief):
    """What may count rows that the configuration leaves out.

    Attributes:
        bad_documents: rows that cannot be read.
        dropped_documents: rows that each filter dropped, by its name.
    """

    bad_documents: Count = 0
    dropped_documents: dict[FilterName, Count] = {}  # noqa: RUF012  (pydantic copies it)


class PartSummary(LeftOut):
    """One part in the manifest; see `PartRecord` for the words.

    Attributes:
        source: its first file.
        span: of that file, where the part is a span of it.
        files: how many the part is made of.
        files_not_checked: of those, if they are several.
    """

    part: Count
    source: SourceIdentity
    span: Span | None = None
    files: Annotated[int, Field(gt=0)] = 1
    files_not_checked: Count = 0
    record: FileRecord
    rows: Count
    null_documents: Count
    empty_documents: Count
    text_bytes: Count
    duplicate_documents: Count = 0
    duplicate_tokens: Count = 0
    unchosen_documents: Count = 0

    @property
    def not_checked(self) -> int:
        """How many of its files came with nothing to compare their bytes with."""
        return self.files_not_checked if self.files > 1 else int(self.source.content is not None)


class PartCounts(LeftOut):
    """The counts of a part: what its record and the report of its runs share.

    Attributes:
        source: its first file.
        spans: what it is made of, in order; none if that is one whole file.
        rows: of all spans; each is a document of a split, null, empty, bad, or
            dropped.
        null_documents: rows that hold no text.
        empty_documents: rows whose text gives no token.
        text_bytes: UTF-8 bytes of all texts that were tokenized.
        bad_listed: the first of the bad ones.
    """

    part: Count
    spec: DatasetSpec
    source: SourceIdentity
    spans: tuple[SpanRecord, ...] = ()
    rows: Count
    null_documents: Count
    empty_documents: Count
    text_bytes: Count
    splits: dict[Split, SplitPart]
    bad_listed: Annotated[tuple[BadDocument, ...], Field(max_length=MOST_BAD_LISTED)] = ()

    @property
    def made_of(self) -> tuple[SpanRecord, ...]:
        """Its spans, also if that is one whole file."""
        return self.spans or (SpanRecord(source=self.source, rows=self.rows),)

    @property
    def made_of_text(self) -> str:
        """The same for people."""
        span = self.spans[0].span if self.spans else None
        return made_of_text(self.source.url, span, self.source.size, files=len(self.made_of))


class PartRecord(PartCounts, Sealed):
    """The counts of a part, and every file that was made of its sources.

    Attributes:
        duplicate_documents: rows that were left out as copies of earlier documents.
        duplicate_tokens: their tokens, with one end-of-text id each.
        duplicates: the list of them, if copies are looked for.
        unchosen_documents: of a subset, rows that are documents of the whole dataset alone; nothing
            tells the bytes of the texts of the others, so `text_bytes` is 0.
    """

    format: Literal[1] = 1
    documents: FileRecord
    duplicate_documents: Count = 0
    duplicate_tokens: Count = 0
    duplicates: FileRecord | None = None
    unchosen_documents: Count = 0

    @model_validator(mode="after")
    def _spans_agree(self) -> Self:
        if not self.spans:
            return self
        if self.source != self.spans[0].source:
            raise ValueError(f"{self.source.url}, but the first span is of another file")
        if len(self.spans) > 1 and any(source_span.span is not None for source_span in self.spans):
            raise ValueError("several spans, of which one is no whole file")
        if self.rows != (rows := sum(source_span.rows for source_span in self.spans)):
            raise ValueError(f"{self.rows} rows, but {rows} in its spans")
        return self

    @model_validator(mode="after")
    def _sums_agree(self) -> Self:
        if set(self.splits) != set(self.spec.splits):
            raise ValueError(f"splits {sorted(self.splits)}, expected {sorted(self.spec.splits)}")
        kept = sum(split.documents for split in self.splits.values())
        skipped = self.null_documents + self.empty_documents + self.bad_documents
        skipped += sum(self.dropped_documents.values())
        if self.unchosen_documents and self.spec.subset is None:
            raise ValueError(f"{self.unchosen_documents} documents were not chosen, of no subset")
        left_out = skipped + self.duplicate_documents + self.unchosen_documents
        if kept + left_out != self.rows:
            raise ValueError(f"{self.rows} rows, but {kept} documents kept and {left_out} skipped")
        if self.bad_documents and self.spec.on_bad_document == "fail":
            raise ValueError(f"{self.bad_documents} bad documents, which were to fail the file")
        if set(self.dropped_documents) != set(self.spec.filters.given()):
            raise ValueError(
                f"documents were dropped by {sorted(self.dropped_documents)}, the filters are "
                f"{sorted(self.spec.filters.given())}"
            )
        if len(self.bad_listed) != min(self.bad_documents, MOST_BAD_LISTED):
            raise ValueError(f"{len(self.bad_listed)} listed of {self.bad_documents} bad documents")
        if self.spec.shuffle is not None and (self.spans or skipped):
            raise ValueError("a part of shuffled documents with spans or skipped rows of its own")
        if self.documents.path != documents_path(self.part):
            raise ValueError(f"documents at {self.documents.path!r} are not those of the part")
        return self

    @model_validator(mode="after")
    def _duplicates_agree(self) -> Self:
        path = None if self.spec.deduplicate is None else duplicates_path(self.part)
        listed = None if self.duplicates is None else self.duplicates.path
        if listed != path:
            raise ValueError(f"duplicates at {listed!r}, expected {path!r}")
        if self.duplicates is None and self.duplicate_documents:
            raise ValueError(f"{self.duplicate_documents} duplicates, which were not looked for")
        if self.duplicate_documents * 2 > self.duplicate_tokens:
            raise ValueError(
                f"{self.duplicate_documents} duplicates of {self.duplicate_tokens} tokens"
            )
        return self

    @model_validator(mode="after")
    def _shards_agree(self) -> Self:
        form = self.spec.shard_format
        for name, split in self.splits.items():
            for number, shard in enumerate(split.shards):
                if shard.raw_name != form.shard_name(name, self.part, number):
                    raise ValueError(f"{shard.raw_name!r} as shard {number} of part {self.part:05}")
                if shard.zip_name is not None and not shard.zip_name.startswith(shard.raw_name):
                    raise ValueError(f"{shard.zip_name!r} as packed {shard.raw_name!r}")
                if shard.raw_bytes != form.raw_size(shard.samples):
                    raise ValueError(f"{shard.samples} samples in {shard.raw_bytes} bytes")
            if split.documents * 2 > split.tokens:
                raise ValueError(f"{name}: {split.documents} documents in {split.tokens} tokens")
            if split.tokens + split.padding != split.samples * self.spec.sequence_length:
                raise ValueError(
                    f"{name}: {split.tokens} tokens and {split.padding} of padding do not fill "
                    f"{split.samples} samples of {self.spec.sequence_length}"
                )
        return self

    def files(self) -> list[FileRecord]:
        """Every file of this part but the record itself."""
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
        """The entry of this part in the manifest."""
        shared = PartSummary.model_fields.keys() & type(self).model_fields.keys()
        unchecked = sum(span.source.content is not None for span in self.spans)
        return PartSummary(
            **{name: getattr(self, name) for name in shared},
            span=self.spans[0].span if self.spans else None,
            files=len(self.made_of),
            files_not_checked=unchecked if len(self.spans) > 1 else 0,
            record=FileRecord.of(record_path(self.part), to_json(self)),
        )
