"""The records of an export: the bytes that each part wrote, and the origin of everything."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ByteSize, Field

from streaming_ext.format.layout import EXPORT, Split
from streaming_ext.format.schema import Count, FileRecord, Sealed, Value, from_json
from streaming_ext.format.spec import TokenizerIdentity
from streaming_ext.store import Storage
from streaming_ext.text.options import Options
from tasks.core.engine.output_files import Stretch, file_sizes
from tasks.core.reading.dataset_files import records_in

FOLDER = "export"


def record_path(part: int) -> str:
    """The record whose existence makes an exported part count."""
    return f"{FOLDER}/{part:05}.json"


class ExportOptions(Options):
    """Options that decide the bytes of an export besides the dataset and the format."""

    max_file_size: Annotated[ByteSize | None, Field(ge=1024)] = None
    """Upper bound of a file; default: the format's usual size."""
    rows: Literal["samples", "documents"] = "samples"
    """Content of a WebDataset sample."""
    sequence_length: Annotated[int | None, Field(gt=0, le=2**24)] = None
    """Tokens per sample of WebDataset; default: that of the dataset."""
    provenance: bool = False
    """With documents as rows: source and row of each, as JSON beside its ids."""


class Made(Value):
    """A file that belongs to one part, as indexes over all parts list it.

    Attributes:
        path: below the root of the export.
        documents: complete documents in it, if it holds complete documents.
        tokens: ids in it, padding included.
        samples: samples in it, if the format has samples.
        size: the size of the file, in bytes.
    """

    path: str
    documents: Count = 0
    tokens: Count = 0
    samples: Count = 0
    size: Count


class Extent(Value):
    """The amounts of a split that parts of a dataset hold: all parts, or those before one.

    Attributes:
        documents: number of documents.
        tokens: their ids and one end-of-text id each, without padding.
        files: number of files that belong to one part.
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


class ExportIdentity(Value):
    """Everything that decides the bytes of an export.

    Attributes:
        export: name of the format.
        options: the options of the format.
        dataset_manifest: the manifest of the dataset that is exported.
    """

    export: str
    options: ExportOptions
    dataset_manifest: FileRecord


class ExportRecord(Sealed):
    """The record of an exported part.

    Attributes:
        documents, tokens: the amounts of the part.
        made: the files that belong to the part.
        spans: all bytes that it wrote.
    """

    identity: ExportIdentity
    documents: Count
    tokens: Count
    made: tuple[Made, ...]
    spans: tuple[Stretch, ...]


class ExportManifest(Value):
    """The commit point of an export, written last.

    Attributes:
        made_with: versions of libraries that decide bytes of the format.
        dataset: the location of the dataset.
        records: the records of the parts, in order.
        spans: the bytes that belong to no part, such as indexes.
    """

    format: Literal[1] = 1
    made_with: dict[str, str] = Field(default_factory=dict)
    identity: ExportIdentity
    dataset: str
    tokenizer: TokenizerIdentity
    splits: dict[Split, Extent]
    records: tuple[FileRecord, ...]
    spans: tuple[Stretch, ...]


def is_export(storage: Storage) -> bool:
    """Return whether a storage holds a published export, rather than a dataset."""
    try:
        storage.read(EXPORT)
    except FileNotFoundError:
        return False
    return True


def read_export(storage: Storage) -> ExportManifest:
    """The manifest of an export.

    Raises:
        FileNotFoundError: there is none.
        CorruptDatasetError: it is damaged.
    """
    return from_json(ExportManifest, storage.read(EXPORT), where=f"{storage}/{EXPORT}")


def read_export_records(storage: Storage) -> dict[int, ExportRecord]:
    """The records of exported parts, by part.

    Raises:
        CorruptDatasetError: one is damaged.
    """
    return records_in(storage, FOLDER, partial(from_json, ExportRecord))


def all_spans(manifest: ExportManifest, records: Iterable[ExportRecord]) -> list[Stretch]:
    """Every span of every file of an export."""
    return [*manifest.spans, *(span for record in records for span in record.spans)]


def made_files(
    splits: Iterable[Split], records: Collection[ExportRecord]
) -> dict[Split, list[Made]]:
    """The files of each split that belong to one part, in order."""
    return {
        split: [
            file for record in records for file in record.made if file.path.startswith(f"{split}/")
        ]
        for split in splits
    }


class ExportDescription(NamedTuple):
    """The description of an export for `inspect`; `files` are paths and sizes in bytes."""

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
        FileNotFoundError: there is no export.
        CorruptDatasetError: a record is damaged.
    """
    manifest = read_export(storage)
    sizes = file_sizes(all_spans(manifest, read_export_records(storage).values()))
    return ExportDescription(str(storage), manifest, dict(sorted(sizes.items())))
