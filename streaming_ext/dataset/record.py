"""The record of a part: what it was made of and every file that came of it.

A part counts when its record exists. It is a function of the source bytes and the configuration
alone: no time and no host stands in it.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from streaming_ext.dataset.layout import Split, documents_path, record_path
from streaming_ext.dataset.schema import Count, FileRecord, Value, to_json
from streaming_ext.dataset.shard import Shard
from streaming_ext.dataset.spec import DatasetSpec

MOST_BAD_LISTED = 100  # of a part: who has more needs another look at the file
NOT_CHECKED: Literal["not checked"] = "not checked"


class SourceIdentity(Value):
    """Which bytes a part was made from.

    Attributes:
        url: where the file was found.
        size: in bytes.
        version: what pins its content, `xxh128:HEX` for a file on disk.
        content: `not checked` where the server offered nothing to compare the bytes with that
            came, or only some of the file were fetched.
    """

    url: str
    size: Count
    version: str
    content: Literal["not checked"] | None = None

    @model_serializer(mode="wrap")
    def _without_nothing(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        if self.content is None:
            values.pop("content", None)
        return values


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
        place: where that is, for people.
        reason: what is wrong.
    """

    file: str
    row: Count
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: {self.reason}"


class _WithBad(Value):
    """What may count bad documents; nothing is said of them where there are none.

    Attributes:
        bad_documents: rows that cannot be read, left out since the configuration says so.
    """

    bad_documents: Count = 0

    @model_serializer(mode="wrap")
    def _without_nothing(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        if not self.bad_documents:
            for name in ("bad_documents", "bad_listed"):
                values.pop(name, None)
        return values


class PartSummary(_WithBad):
    """One part in the manifest; see `PartRecord` for the words."""

    part: Count
    source: SourceIdentity
    record: FileRecord
    rows: Count
    null_documents: Count
    empty_documents: Count
    text_bytes: Count


class PartRecord(_WithBad):
    """What became of one source file, and every file that was made of it.

    Attributes:
        rows: rows of the source file; each is a document of a split, null, empty, or bad.
        null_documents: rows that hold no text.
        empty_documents: rows whose text gives no token.
        text_bytes: UTF-8 bytes of all texts.
        bad_listed: the first of the bad ones.
    """

    format: Literal[1] = 1
    part: Count
    spec: DatasetSpec
    source: SourceIdentity
    rows: Count
    null_documents: Count
    empty_documents: Count
    text_bytes: Count
    splits: dict[Split, SplitPart]
    documents: FileRecord
    bad_listed: Annotated[tuple[BadDocument, ...], Field(max_length=MOST_BAD_LISTED)] = ()

    @model_validator(mode="after")
    def _sums_agree(self) -> Self:
        if set(self.splits) != set(self.spec.splits):
            raise ValueError(f"splits {sorted(self.splits)}, expected {sorted(self.spec.splits)}")
        kept = sum(split.documents for split in self.splits.values())
        skipped = self.null_documents + self.empty_documents + self.bad_documents
        if kept + skipped != self.rows:
            raise ValueError(f"{self.rows} rows, but {kept} documents kept and {skipped} skipped")
        if self.bad_documents and self.spec.on_bad_document == "fail":
            raise ValueError(f"{self.bad_documents} bad documents, which were to fail the file")
        if len(self.bad_listed) != min(self.bad_documents, MOST_BAD_LISTED):
            raise ValueError(f"{len(self.bad_listed)} listed of {self.bad_documents} bad documents")
        if self.documents.path != documents_path(self.part):
            raise ValueError(f"documents at {self.documents.path!r} are not those of the part")
        form = self.spec.shard_format
        for name, split in self.splits.items():
            for number, shard in enumerate(split.shards):
                if shard.raw_name != form.shard_name(self.part, number):
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
        return [*shards, self.documents]

    def summary(self) -> PartSummary:
        """The line that stands for this part in the manifest."""
        return PartSummary(
            part=self.part,
            source=self.source,
            record=FileRecord.of(record_path(self.part), to_json(self)),
            rows=self.rows,
            null_documents=self.null_documents,
            empty_documents=self.empty_documents,
            bad_documents=self.bad_documents,
            text_bytes=self.text_bytes,
        )
