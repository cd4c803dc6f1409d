"""What an export says of itself: which bytes each part wrote, and what all of it was made from."""

from collections.abc import Iterable
from typing import Annotated, Literal, Protocol

from pydantic import Field

from streaming_ext.base.errors import NotADatasetError
from streaming_ext.format.layout import EXPORT, Split
from streaming_ext.format.schema import Count, FileRecord, Hash, Sealed, Value, from_json
from streaming_ext.format.spec import TokenizerIdentity
from tasks.core.build.build import Stretch
from tasks.core.derive.export_format import ExportOptions, Extent, Made

FOLDER = "export"

Path = Annotated[
    str, Field(pattern=r"^(\.?[A-Za-z0-9_-][A-Za-z0-9._-]*/)*\.?[A-Za-z0-9_-][A-Za-z0-9._-]*$")
]


def record_path(part: int) -> str:
    """The record whose existence makes an exported part count."""
    return f"{FOLDER}/{part:05}.json"


class Piece(Value):
    """Some consecutive bytes of a file, or all of them.

    Attributes:
        path: of the file, below the root of the export.
        start: of the bytes in it.
        size: how many they are.
        xxh128: their content hash.
    """

    path: Path
    start: Count = 0
    size: Count
    xxh128: Hash

    @property
    def stretch(self) -> Stretch:
        """The same, for what compares them with the hash."""
        return Stretch(self.path, self.start, self.size, self.xxh128)


class ExportIdentity(Value):
    """What decides every byte of an export.

    Attributes:
        export: name of the format.
        dataset_manifest: of the dataset that it is made from.
    """

    export: str
    options: ExportOptions
    dataset_manifest: FileRecord


class ExportRecord(Sealed):
    """What one part of the dataset became."""

    format: Literal[1] = 1
    identity: ExportIdentity
    part: Count
    splits: dict[Split, Extent]
    made: dict[Split, tuple[Made, ...]]
    pieces: tuple[Piece, ...]


class ExportedPart(Value):
    """One part in the manifest of an export."""

    part: Count
    record: FileRecord


class ExportManifest(Value):
    """The commit point of an export, written last.

    Attributes:
        dataset: where the dataset lay.
        pieces: what is of no part, such as indexes.
        made_with: versions of libraries that decided the bytes.
    """

    format: Literal[1] = 1
    made_with: dict[str, str] = Field(default_factory=dict)
    identity: ExportIdentity
    dataset: str
    tokenizer: TokenizerIdentity
    splits: dict[Split, Extent]
    parts: tuple[ExportedPart, ...]
    pieces: tuple[Piece, ...]


class Files(Protocol):
    """Where an export lies: `str()` names it in messages."""

    def read(self, path: str) -> bytes:
        """The content of a file; `FileNotFoundError` where there is none."""
        ...


def read_export(files: Files) -> ExportManifest:
    """The manifest of an export.

    Raises:
        NotADatasetError: there is none.
        CorruptDatasetError: it is damaged.
    """
    try:
        data = files.read(EXPORT)
    except FileNotFoundError as error:
        raise NotADatasetError(
            f"{files}: no {EXPORT}, so this is no finished export. Run `shardmill export` with the "
            "same options again to finish it."
        ) from error
    return from_json(ExportManifest, data, where=f"{files}/{EXPORT}")


def file_sizes(pieces: Iterable[Piece]) -> dict[str, int]:
    """The size that each file has in the end, by its path."""
    sizes: dict[str, int] = {}
    for piece in pieces:
        sizes[piece.path] = max(sizes.get(piece.path, 0), piece.start + piece.size)
    return sizes
