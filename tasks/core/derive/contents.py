"""What a published dataset or export consists of: every file, with size and hash, by part."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from streaming_ext.base.errors import CorruptDatasetError, command
from streaming_ext.format.layout import EXPORT, MANIFEST
from streaming_ext.format.manifest import Manifest, kept_indexes
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, content_hash, from_json, to_json
from streaming_ext.store import Storage, open_storage
from tasks.core.build.build import Stretch
from tasks.core.derive.export_records import ExportRecord, FileSpan, is_export, read_export
from tasks.core.derive.move import FileGroup, Move, Text
from tasks.core.reading.dataset_files import DatasetFiles, read_dataset, read_listed
from tasks.core.shard.dataset_layout import beside_parts

_IO_THREADS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """All files of a dataset or an export.

    Attributes:
        parts: the files of each part with its record, and files that several parts write into.
        rest: what belongs to no part, except for the manifest.
        manifest: the commit point.
    """

    parts: tuple[FileGroup, ...]
    rest: FileGroup
    manifest: Text

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each file but the manifest in bytes, by its path."""
        return {
            path: size for group in (*self.parts, self.rest) for path, size in group.sizes.items()
        }


def contents_of(storage: Storage) -> Contents:
    """What a storage holds; metadata alone is read.

    Raises:
        NotADatasetError: nothing is published there.
        CorruptDatasetError: its metadata are damaged.
    """
    if is_export(storage):
        return _of_export(storage)
    return _of_dataset(str(storage), manifest_hash(storage))


def manifest_hash(storage: Storage, path: str = MANIFEST) -> str | None:
    """The hash that pins all that a dataset or export holds; None if there is none."""
    try:
        return content_hash(storage.read(path))
    except FileNotFoundError:
        return None


def is_published_as(storage: Storage, manifest: Text) -> bool | None:
    """Whether a storage holds this manifest; None if it holds none of its kind."""
    found = manifest_hash(storage, manifest.path)
    return None if found is None else found == manifest.file.xxh128


@lru_cache(1)  # a run plans before and after it takes the output
def _of_dataset(url: str, _: str | None) -> Contents:
    storage = open_storage(url)
    _files, manifest, records = read_dataset(storage)
    data = storage.read(MANIFEST)
    if data != to_json(manifest):
        raise CorruptDatasetError(
            f"{storage}/{MANIFEST} is not in the form in which it is written, or was changed "
            f"meanwhile. {command('verify', storage)} checks every file."
        )
    return Contents(
        parts=tuple(part_files(url, record, record) for record in records),
        rest=FileGroup(moves=tuple(_beside_parts(url, manifest))),
        manifest=Text(path=MANIFEST, text=data.decode()),
    )


def _beside_parts(root: str, manifest: Manifest) -> Iterator[Move]:
    """The files that belong to no part; indexes are read where no extension replaces them."""
    kept: dict[str, FileRecord] = {}
    if manifest.generations:
        indexes = [summary.index.path for summary in manifest.splits.values()]
        kept = dict(zip(indexes, kept_indexes(manifest.splits), strict=True))
    for file in beside_parts(manifest):
        yield Move.of(root, kept.get(file.path, file), to=file.path)


def part_files(root: str, held: PartRecord, record: PartRecord) -> FileGroup:
    """The files of a part.

    Args:
        root: URL of the dataset that has them.
        held: the record there.
        record: on the output: the same, or under another number.
    """
    moves = [
        Move.of(root, before, after.path)
        for before, after in zip(held.files(), record.files(), strict=True)
    ]
    splits = record.splits.values()
    return FileGroup(
        moves=tuple(moves),
        texts=(Text(path=record.summary().record.path, text=to_json(record).decode()),),
        documents=sum(split.documents for split in splits),
        tokens=sum(split.tokens for split in splits),
    )


def _of_export(storage: Storage) -> Contents:
    manifest = read_export(storage)
    files = DatasetFiles(storage, {file.path: file.size for file in manifest.records})

    def read(file: FileRecord) -> tuple[ExportRecord, Text]:
        text = read_listed(files, file)
        record = from_json(ExportRecord, text, where=f"{storage}/{file.path}")
        return record, Text(path=file.path, text=text.decode())

    with ThreadPoolExecutor(_IO_THREADS) as threads:
        records = list(threads.map(read, manifest.records))
    # owners: the spans of each file, with their part; the number after the last part: of none
    owners: dict[str, list[tuple[FileSpan, int]]] = {}
    for part, spans in enumerate([*(record.spans for record, _ in records), manifest.spans]):
        for span in spans:
            owners.setdefault(span.path, []).append((span, part))
    own: list[list[Move]] = [[] for _ in range(len(records) + 1)]
    shared: list[FileGroup] = []
    for each in owners.values():
        move = _joined(storage, [span.stretch for span, _ in each])
        parts = {part for _, part in each}
        if len(parts) > 1:
            shared.append(FileGroup(moves=(move,)))
        else:
            own[parts.pop()].append(move)
    *of_parts, rest = (tuple(moves) for moves in own)
    groups = [
        FileGroup(
            moves=moves,
            texts=(text,),
            documents=sum(split.documents for split in record.splits.values()),
            tokens=sum(split.tokens for split in record.splits.values()),
        )
        for moves, (record, text) in zip(of_parts, records, strict=True)
    ]
    return Contents(
        parts=(*shared, *groups),
        rest=FileGroup(moves=rest),
        manifest=Text(path=EXPORT, text=storage.read(EXPORT).decode()),
    )


def _joined(storage: Storage, spans: list[Stretch]) -> Move:
    """The move of a file whose spans several parts wrote."""
    spans.sort(key=lambda span: (span.start, span.size))
    end = 0
    for span in spans:
        if span.start != end:
            raise CorruptDatasetError(
                f"{storage}/{span.path}: no record lists its bytes from {end} on. "
                f"{command('verify', storage)} checks every file."
            )
        end += span.size
    return Move(root=str(storage), path=spans[0].path, spans=tuple(spans))
