"""A published dataset, opened: its manifest, and files as it lists them."""

from streaming_ext.dataset.layout import MANIFEST
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.reading import listed_record, manifest_of
from streaming_ext.dataset.record import PartRecord
from streaming_ext.dataset.schema import FileRecord
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
    try:
        return files.read(file, limit=limit)
    except CorruptDatasetError as error:
        raise damaged(files, file.path, error) from None


def damaged(files: DatasetFiles, path: str, error: Exception) -> CorruptDatasetError:
    """An error that names the file, and what to do."""
    return CorruptDatasetError(
        f"{files.storage}/{path}: {error}. {command('verify', files.storage)} checks every file."
    )


def read_record(files: DatasetFiles, manifest: Manifest, part: int) -> PartRecord:
    """The record of a part, as the manifest lists it.

    Raises:
        CorruptDatasetError: it is missing or damaged.
    """
    file = manifest.parts[part].record
    data, where = read_listed(files, file), f"{files.storage}/{file.path}"
    return listed_record(data, manifest, part, where=where)
