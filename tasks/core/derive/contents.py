"""The contents of a published dataset or export: every file, with size and hash, by part."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.layout import EXPORT, MANIFEST
from streaming_ext.format.manifest import index_file
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, from_json, to_json
from streaming_ext.store import Storage, open_storage
from tasks.core.derive.export_records import ExportRecord, is_export, read_export
from tasks.core.engine.output_files import Stretch, hash_of
from tasks.core.reading.dataset_files import read_dataset, read_recorded
from tasks.core.reading.dataset_layout import beside_parts
from tasks.core.workers.messages import Message


class Move(Message):
    """A file to put on the output.

    Attributes:
        root: URL of the dataset or export that has the file.
        path: the path of the file there.
        spans: all bytes of the file, under its path on the output.
    """

    root: str
    path: str
    spans: tuple[Stretch, ...]

    @classmethod
    def of(cls, root: str, file: FileRecord, to: str) -> "Move":
        """The move of a recorded file to a path."""
        return cls(root=root, path=file.path, spans=(Stretch.of(file)._replace(path=to),))

    @property
    def to(self) -> str:
        """Path of the file on the output."""
        return self.spans[0].path

    @property
    def size(self) -> int:
        """The size of the file, in bytes."""
        return sum(span.size for span in self.spans)


class FileGroup(Message):
    """Files that are put together; the texts after all others.

    Attributes:
        moves: files to put.
        texts: small files, such as records, by their path.
        documents, tokens: the numbers that they hold, if they are a part.
    """

    moves: tuple[Move, ...] = ()
    texts: dict[str, str] = {}  # noqa: RUF012  (pydantic copies it)
    documents: int = 0
    tokens: int = 0

    @property
    def spans(self) -> list[Stretch]:
        """All bytes of the files on the output."""
        texts = (FileRecord.of(path, text.encode()) for path, text in self.texts.items())
        return [*(span for move in self.moves for span in move.spans), *map(Stretch.of, texts)]


def together(groups: Sequence[FileGroup]) -> FileGroup:
    """The same files in one group."""
    return FileGroup(
        moves=tuple(move for group in groups for move in group.moves),
        texts={path: text for group in groups for path, text in group.texts.items()},
        documents=sum(group.documents for group in groups),
        tokens=sum(group.tokens for group in groups),
    )


@dataclass(frozen=True, slots=True)
class Contents:
    """All files of a dataset or an export.

    Attributes:
        parts: the files of each part with its record; with the last, what belongs to no part.
        path: the path of the manifest.
        data: content of the manifest.
    """

    parts: tuple[FileGroup, ...]
    path: str
    data: bytes

    @property
    def manifest(self) -> FileRecord:
        """Path, size and hash of the manifest."""
        return FileRecord.of(self.path, self.data)

    @property
    def spans(self) -> list[Stretch]:
        """All bytes of all files but the manifest."""
        return [span for group in self.parts for span in group.spans]


def contents_of(storage: Storage) -> Contents:
    """List the contents of a storage; metadata alone is read.

    Raises:
        NotADatasetError: nothing is published there.
        CorruptDatasetError: its metadata are damaged.
    """
    if is_export(storage):
        return _of_export(storage)
    return _of_dataset(str(storage), hash_of(storage, MANIFEST))


@lru_cache(1)  # a run plans before and after it takes the output
def _of_dataset(root: str, _: str | None) -> Contents:
    storage = open_storage(root)
    files, manifest, records = read_dataset(storage)
    # Indexes are read where no extension replaces them.
    kept = {
        summary.index.path: index_file(split, summary.index, files.sizes)
        for split, summary in manifest.splits.items()
    }
    rest = tuple(
        Move.of(root, kept.get(file.path, file), file.path) for file in beside_parts(manifest)
    )
    *groups, last = (part_files(root, record, record) for record in records)
    groups.append(together([last, FileGroup(moves=rest)]))
    return Contents(tuple(groups), MANIFEST, to_json(manifest))


def part_files(root: str, held: PartRecord, record: PartRecord) -> FileGroup:
    """The files of a part.

    Args:
        root: URL of the dataset that has them.
        held: the record in that dataset.
        record: the record on the output: the same, or under another number.
    """
    files = zip(held.files(), record.files(), strict=True)
    return FileGroup(
        moves=tuple(Move.of(root, before, after.path) for before, after in files),
        texts={record.summary().record.path: to_json(record).decode()},
        documents=record.documents_kept,
        tokens=record.tokens_kept,
    )


def _of_export(storage: Storage) -> Contents:
    """The contents of an export; a file of several parts goes with the first of them."""
    manifest, root = read_export(storage), str(storage)

    def read(file: FileRecord) -> ExportRecord:
        return from_json(ExportRecord, read_recorded(storage, file), where=f"{storage}/{file.path}")

    records = list(mapped_ahead(read, manifest.records))
    spans: dict[str, list[Stretch]] = {}
    owners: dict[str, int] = {}  # the part of each file
    for part, written in enumerate([*(record.spans for record in records), manifest.spans]):
        for span in written:
            spans.setdefault(span.path, []).append(span)
            owners.setdefault(span.path, min(part, len(records) - 1))
    moves: list[list[Move]] = [[] for _ in records]
    for path, part in owners.items():
        moves[part].append(Move(root=root, path=path, spans=tuple(sorted(spans[path]))))
    parts = [
        FileGroup(
            moves=tuple(own),
            texts={file.path: to_json(record).decode()},
            documents=record.documents,
            tokens=record.tokens,
        )
        for own, file, record in zip(moves, manifest.records, records, strict=True)
    ]
    return Contents(tuple(parts), EXPORT, to_json(manifest))
