"""What a published dataset or export consists of: every file, with size and hash, by part."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache

from streaming_ext.base.errors import CorruptDatasetError, command
from streaming_ext.format.layout import EXPORT, MANIFEST
from streaming_ext.format.manifest import Manifest, kept_indexes
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, content_hash, from_json, to_json
from streaming_ext.store import Storage, open_storage
from tasks.core.derive.describe_export import is_export
from tasks.core.derive.export_records import (
    ExportRecord,
    Piece,
    read_export,
)
from tasks.core.derive.move import Block, Move, Text, Unit
from tasks.core.reading.dataset_files import DatasetFiles, open_dataset, read_listed, read_record
from tasks.core.shard.publish import beside_parts

_IO_THREADS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """All files of what is published at a place.

    Attributes:
        units: the files of each part with its record, and files that several parts share.
        rest: what belongs to no part, but for the manifest.
        manifest: the commit point.
    """

    units: tuple[Unit, ...]
    rest: Unit
    manifest: Text

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each file but the manifest, in bytes."""
        return {
            path: size for unit in (*self.units, self.rest) for path, size in unit.sizes.items()
        }


def in_larger_units(contents: Contents, *, files: int) -> Contents:
    """The same in fewer units, of some `files` each: to name a file takes less than a task run."""
    units: list[Unit] = []
    together: list[Unit] = []
    for unit in contents.units:
        together.append(unit)
        if sum(len(each.moves) for each in together) >= files:
            units.append(_together(together))
            together = []
    return replace(contents, units=(*units, *([_together(together)] if together else [])))


def _together(units: list[Unit]) -> Unit:
    return Unit(
        moves=tuple(move for unit in units for move in unit.moves),
        texts=tuple(text for unit in units for text in unit.texts),
        documents=sum(unit.documents for unit in units),
        tokens=sum(unit.tokens for unit in units),
    )


def contents_of(storage: Storage) -> Contents:
    """What lies at a place; metadata alone is read.

    Raises:
        NotADatasetError: nothing is published there.
        CorruptDatasetError: its metadata are damaged.
    """
    if is_export(storage):
        return _of_export(storage)
    return _of_this_dataset(str(storage), manifest_hash(storage))


def manifest_hash(storage: Storage) -> str | None:
    """What pins all that a dataset holds; None where there is none."""
    try:
        return content_hash(storage.read(MANIFEST))
    except FileNotFoundError:
        return None


@lru_cache(1)  # a run looks before it takes the output, and behind that
def _of_this_dataset(url: str, manifest: str | None) -> Contents:
    return _of_dataset(open_storage(url))


def records_of(storage: Storage) -> tuple[Manifest, list[PartRecord]]:
    """The manifest of a dataset, and the records that it lists.

    Raises:
        NotADatasetError: there is none at this place.
        CorruptDatasetError: one of them is damaged.
    """
    files, manifest = open_dataset(storage)
    with ThreadPoolExecutor(_IO_THREADS) as threads:
        parts = range(len(manifest.parts))
        return manifest, list(threads.map(lambda part: read_record(files, manifest, part), parts))


def _of_dataset(storage: Storage) -> Contents:
    manifest, records = records_of(storage)
    root, data = str(storage), storage.read(MANIFEST)
    if data != to_json(manifest):
        raise CorruptDatasetError(
            f"{storage}/{MANIFEST} is not in the form in which it is written, or was changed "
            f"meanwhile. {command('verify', storage)} checks every file."
        )
    return Contents(
        units=tuple(_unit(root, record) for record in records),
        rest=Unit(moves=tuple(_beside_parts(root, manifest))),
        manifest=Text(path=MANIFEST, text=data.decode()),
    )


def _beside_parts(root: str, manifest: Manifest) -> Iterator[Move]:
    """The moves of what belongs to no part; indexes are read where no extension replaces them."""
    kept: dict[str, FileRecord] = {}
    if manifest.generations:
        indexes = [summary.index.path for summary in manifest.splits.values()]
        kept = dict(zip(indexes, kept_indexes(manifest.splits), strict=True))
    for file in beside_parts(manifest):
        yield Move.of(root, kept.get(file.path, file), to=file.path)


def _unit(root: str, record: PartRecord) -> Unit:
    summary, held = record.summary(), record.splits.values()
    return Unit(
        moves=tuple(Move.of(root, file) for file in record.files()),
        texts=(Text(path=summary.record.path, text=to_json(record).decode()),),
        documents=sum(split.documents for split in held),
        tokens=sum(split.tokens for split in held),
    )


def _of_export(storage: Storage) -> Contents:
    manifest = read_export(storage)
    data = storage.read(EXPORT)
    listed = [part.record for part in manifest.parts]
    files = DatasetFiles(storage, {file.path: file.size for file in listed})

    def read(file: FileRecord) -> tuple[ExportRecord, Text]:
        text = read_listed(files, file)
        record = from_json(ExportRecord, text, where=f"{storage}/{file.path}")
        return record, Text(path=file.path, text=text.decode())

    with ThreadPoolExecutor(_IO_THREADS) as threads:
        records = list(threads.map(read, listed))
    pieces: dict[str, list[tuple[Piece, int | None]]] = {}
    for number, (record, _) in enumerate(records):
        for piece in record.pieces:
            pieces.setdefault(piece.path, []).append((piece, number))
    for piece in manifest.pieces:
        pieces.setdefault(piece.path, []).append((piece, None))
    own: dict[int | None, list[Move]] = {}
    shared: list[Move] = []
    for path, each in pieces.items():
        move = _of_pieces(storage, path, [piece for piece, _ in each])
        owners = {number for _, number in each}
        (shared if len(owners) > 1 else own.setdefault(owners.pop(), [])).append(move)
    of_parts = [
        Unit(
            moves=tuple(own.get(number, ())),
            texts=(text,),
            documents=sum(split.documents for split in record.splits.values()),
            tokens=sum(split.tokens for split in record.splits.values()),
        )
        for number, (record, text) in enumerate(records)
    ]
    return Contents(
        units=(*(Unit(moves=(move,)) for move in shared), *of_parts),
        rest=Unit(moves=tuple(own.get(None, ()))),
        manifest=Text(path=EXPORT, text=data.decode()),
    )


def _of_pieces(storage: Storage, path: str, pieces: list[Piece]) -> Move:
    """The move of a file that parts wrote pieces of."""
    end, blocks = 0, []
    for piece in sorted(pieces, key=lambda each: (each.start, each.size)):
        if piece.start != end:
            raise CorruptDatasetError(
                f"{storage}/{path}: no record tells of its bytes from {end} on. "
                f"{command('verify', storage)} checks every file."
            )
        blocks.append(Block(size=piece.size, xxh128=piece.xxh128))
        end += piece.size
    return Move(root=str(storage), path=path, to=path, blocks=tuple(blocks))


def as_published(storage: Storage, manifest: Text) -> bool | None:
    """Whether a place holds this manifest; None where it holds none of its kind."""
    try:
        return content_hash(storage.read(manifest.path)) == manifest.file.xxh128
    except FileNotFoundError:
        return None
