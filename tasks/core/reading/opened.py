"""A published dataset, opened: its manifest, and files as it lists them."""

from collections.abc import Iterator
from contextlib import contextmanager

from streaming_ext.dataset.layout import MANIFEST
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.places import PlacesOfPart, PlacesOfSources
from streaming_ext.dataset.reading import listed_record, manifest_of
from streaming_ext.dataset.record import PartRecord
from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.shuffled.source_table import sources_of
from streaming_ext.errors import CorruptDatasetError, command
from tasks.core.reading.dataset_files import MAX_JSON_BYTES, DatasetFiles
from tasks.core.storage import Storage


def open_dataset(
    storage: Storage, *, generation: str | None = None
) -> tuple[DatasetFiles, Manifest]:
    """The files of a published dataset, and its manifest.

    Args:
        storage: where it lies.
        generation: see `DatasetFiles`.

    Raises:
        NotADatasetError: there is none at this place.
        CorruptDatasetError: the manifest is damaged.
    """
    files = DatasetFiles(storage, storage.list(), generation=generation)
    return files, manifest_of(files.read_manifest(), where=f"{storage}/{MANIFEST}")


def read_listed(files: DatasetFiles, file: FileRecord, *, limit: int = MAX_JSON_BYTES) -> bytes:
    """A file as it is recorded.

    Raises:
        CorruptDatasetError: it is not that; names the file and what checks all.
    """
    with naming(files, file.path):
        return files.read(file, limit=limit)


@contextmanager
def naming(files: DatasetFiles, path: str) -> Iterator[None]:
    """Have an error about damage name the file, and say what to do."""
    try:
        yield
    except (CorruptDatasetError, ValueError, IndexError) as error:
        checks = command("verify", files.storage)
        raise CorruptDatasetError(
            f"{files.storage}/{path}: {error}. {checks} checks every file."
        ) from None


def places_of(
    files: DatasetFiles, manifest: Manifest, record: PartRecord
) -> PlacesOfPart | PlacesOfSources:
    """What tells where the documents of a part come from.

    Raises:
        CorruptDatasetError: the table of sources is missing or damaged.
    """
    if manifest.shuffled is None:
        return PlacesOfPart(record, manifest)
    table = manifest.shuffled.sources
    with naming(files, table.path):
        return PlacesOfSources(sources_of(files.read(table, limit=MAX_JSON_BYTES)))


def read_record(files: DatasetFiles, manifest: Manifest, part: int) -> PartRecord:
    """The record of a part, as the manifest lists it.

    Raises:
        CorruptDatasetError: it is missing or damaged.
    """
    file = manifest.parts[part].record
    data, where = read_listed(files, file), f"{files.storage}/{file.path}"
    return listed_record(data, manifest, part, where=where)


def read_dataset_manifest(storage: Storage, file: FileRecord) -> Manifest:
    """The manifest of the dataset that an output is made from.

    Raises:
        CorruptDatasetError: another dataset lies there now.
    """
    try:
        data = DatasetFiles(storage, {file.path: file.size}).read(file, limit=file.size)
    except CorruptDatasetError as error:
        raise CorruptDatasetError(
            f"{storage} is not the dataset that this run was begun with: {file.path}: {error}."
        ) from None
    return manifest_of(data, where=f"{storage}/{file.path}")
