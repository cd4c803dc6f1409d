"""What an export records: the bytes that each part wrote, and what everything was made from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from streaming_ext.base.errors import NotADatasetError
from streaming_ext.format.layout import EXPORT, Split
from streaming_ext.format.schema import Count, FileRecord, Hash, Sealed, Value, from_json
from streaming_ext.format.spec import TokenizerIdentity
from streaming_ext.store import Storage
from tasks.core.build.build import Stretch
from tasks.core.reading.dataset_files import records_in

FOLDER = "export"

Path = Annotated[
    str, Field(pattern=r"^(\.?[A-Za-z0-9_-][A-Za-z0-9._-]*/)*\.?[A-Za-z0-9_-][A-Za-z0-9._-]*$")
]


def record_path(part: int) -> str:
    """The record whose existence makes an exported part count."""
    return f"{FOLDER}/{part:05}.json"


class ExportOptions(Value):
    """What decides the bytes of an export besides the dataset and the format.

    Attributes:
        max_file_size: upper bound of a file in bytes; None leaves it to the format.
        rows: what a sample is, if the format has samples.
        sequence_length: tokens per sample; None for that of the dataset.
        provenance: whether each document names its source and row.
    """

    max_file_size: Count | None = None
    rows: Literal["samples", "documents"] = "samples"
    sequence_length: Count | None = None
    provenance: bool = False


class Made(Value):
    """A file that belongs to one part, as indexes over all parts list it.

    Attributes:
        path: below the root of the export.
        documents: whole documents in it, if it holds whole documents.
        tokens: ids in it, padding included.
        samples: samples in it, if the format has samples.
        size: in bytes.
    """

    path: str
    documents: Count = 0
    tokens: Count = 0
    samples: Count = 0
    size: Count


class Extent(Value):
    """How much a split holds, in the whole dataset or in one part.

    Attributes:
        documents: how many.
        tokens: their ids and one end-of-text id each, without padding.
        files: that belong to the part.
    """

    documents: Count = 0
    tokens: Count = 0
    files: Count = 0

    def __add__(self, other: "Extent") -> "Extent":
        return Extent(
            documents=self.documents + other.documents,
            tokens=self.tokens + other.tokens,
            files=self.files + other.files,
        )


Extents = Mapping[Split, Extent]


class FileSpan(Value):
    """Consecutive bytes of a file, or all of them.

    Attributes:
        path: of the file, below the root of the export.
        start: position of the first byte.
        size: in bytes.
        xxh128: their content hash.
    """

    path: Path
    start: Count = 0
    size: Count
    xxh128: Hash

    @property
    def stretch(self) -> Stretch:
        """The same for the engine."""
        return Stretch(self.path, self.start, self.size, self.xxh128)


class ExportIdentity(Value):
    """What decides every byte of an export.

    Attributes:
        export: name of the format.
        options: of the format.
        dataset_manifest: of the dataset that is exported.
    """

    export: str
    options: ExportOptions
    dataset_manifest: FileRecord


class ExportRecord(Sealed):
    """What a part of the dataset became."""

    format: Literal[1] = 1
    identity: ExportIdentity
    part: Count
    splits: dict[Split, Extent]
    made: dict[Split, tuple[Made, ...]]
    spans: tuple[FileSpan, ...]


class ExportManifest(Value):
    """The commit point of an export, written last.

    Attributes:
        made_with: versions of libraries that decide bytes of the format.
        dataset: where the dataset was.
        records: of the parts, in order.
        spans: what belongs to no part, such as indexes.
    """

    format: Literal[1] = 1
    made_with: dict[str, str] = Field(default_factory=dict)
    identity: ExportIdentity
    dataset: str
    tokenizer: TokenizerIdentity
    splits: dict[Split, Extent]
    records: tuple[FileRecord, ...]
    spans: tuple[FileSpan, ...]


def is_export(storage: Storage) -> bool:
    """Whether a storage holds a published export, rather than a dataset."""
    try:
        storage.read(EXPORT)
    except FileNotFoundError:
        return False
    return True


def read_export(storage: Storage) -> ExportManifest:
    """The manifest of an export.

    Raises:
        NotADatasetError: there is none.
        CorruptDatasetError: it is damaged.
    """
    try:
        data = storage.read(EXPORT)
    except FileNotFoundError as error:
        raise NotADatasetError(
            f"{storage}: no {EXPORT}, so this is no finished export. Run `shardmill export` with "
            "the same options again to finish it."
        ) from error
    return from_json(ExportManifest, data, where=f"{storage}/{EXPORT}")


def read_export_records(storage: Storage) -> dict[int, ExportRecord]:
    """The records of exported parts, by part.

    Raises:
        CorruptDatasetError: one is damaged.
    """
    return records_in(storage, FOLDER, partial(from_json, ExportRecord))


def all_spans(manifest: ExportManifest, records: Iterable[ExportRecord]) -> list[FileSpan]:
    """Every span of every file of an export."""
    return [*manifest.spans, *(span for record in records for span in record.spans)]


def made_files(splits: Iterable[Split], records: Iterable[ExportRecord]) -> dict[Split, list[Made]]:
    """The files of each split that belong to one part, in order."""
    made = [record.made for record in records]
    return {split: [file for part in made for file in part.get(split, ())] for split in splits}


def file_sizes(spans: Iterable[FileSpan]) -> dict[str, int]:
    """The size of each finished file, by its path."""
    sizes: dict[str, int] = {}
    for span in spans:
        sizes[span.path] = max(sizes.get(span.path, 0), span.start + span.size)
    return sizes


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportDescription:
    """What `inspect` shows of an export; `files` are paths and sizes in bytes."""

    location: str
    manifest: ExportManifest
    files: dict[str, int]

    def facts(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        manifest = self.manifest.model_dump(mode="json", exclude={"spans", "records"})
        return {"export": self.location, **manifest, "files": self.files}


def describe_export(storage: Storage) -> ExportDescription:
    """Read what an export says of itself.

    Raises:
        NotADatasetError: there is no export.
        CorruptDatasetError: a record is damaged.
    """
    manifest = read_export(storage)
    sizes = file_sizes(all_spans(manifest, read_export_records(storage).values()))
    return ExportDescription(
        location=str(storage), manifest=manifest, files=dict(sorted(sizes.items()))
    )
