"""The files of a dataset: reading them, though they may be damaged, and assigning them to parts.

Files are checked when they are read, and their size is limited.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import xxhash

from streaming_ext.base.errors import (
    CorruptDatasetError,
    MissingFolderError,
    NotADatasetError,
    StorageDownError,
    TokenizerError,
    TransientStorageError,
    command,
)
from streaming_ext.base.extras import extras_named
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.layout import (
    COLUMNS_FOLDER,
    DIGESTS_FOLDER,
    DOCUMENTS_FOLDER,
    DUPLICATES_FOLDER,
    EXPORT,
    GENERATIONS_FOLDER,
    MANIFEST,
    PARTS_FOLDER,
    SHUFFLE_FOLDER,
    SPLITS,
    TOKENIZER_FOLDER,
)
from streaming_ext.format.manifest import AddedColumns, Manifest, chosen_generation, kept_indexes
from streaming_ext.format.provenance import SourceRows
from streaming_ext.format.reading import listed_record, manifest_of, read_manifest, record_of
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, Sealed, content_hash
from streaming_ext.format.shuffled import is_grown_sources_path, sources_of
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.store.scratch import new_folder
from streaming_ext.text.tokenizer.load import TOKENIZER_FILES, open_saved
from streaming_ext.text.tokenizer.tokenizer import Tokenizer

# Far more than real files have: a manifest takes about 500 bytes per part, an index 600 per shard.
MAX_JSON_BYTES = 2**30
Read = TypeVar("Read")
Record = TypeVar("Record", bound=Sealed)
MAX_FAILURES = 4  # files in a row that cannot be read, each after all retries


class DatasetFiles:
    """The files of a dataset on storage.

    Attributes:
        sizes: the size of each listed file in bytes, by path; empty if nothing was listed.
    """

    def __init__(
        self,
        storage: Storage,
        sizes: Mapping[str, int] | None = None,
        *,
        generation: str | None = None,
    ) -> None:
        """Keep the arguments; nothing is read yet.

        Args:
            storage: the storage that holds the files.
            sizes: the sizes of the files; see above.
            generation: the start of the hash of the manifest of a generation, if the dataset was
                extended; None for the newest generation.
        """
        self.storage = storage
        self.sizes = sizes or {}
        self.generation = generation
        self._failed_in_a_row = 0
        self._down = ""  # if set, the error message of all further reads

    def read(self, file: FileRecord, *, limit: int = MAX_JSON_BYTES) -> bytes:
        """Read a file and check it against its record.

        Raises:
            CorruptDatasetError: it is damaged; the message does not name the file.
            StorageError: it cannot be read.
        """
        self.check_size(file, limit=limit)
        data = self._read(file.path, lambda: self.storage.read(file.path))
        require_recorded(file, len(data), content_hash(data))
        return data

    def read_into(self, file: FileRecord, room: memoryview) -> None:
        """Read a large file into `room` and check it against its record; it is hashed meanwhile.

        Args:
            file: the file to read.
            room: the memory for the file and one more byte, so that a longer file is detected.

        Raises:
            CorruptDatasetError: it is damaged; the message does not name the file.
            StorageError: it cannot be read.
        """
        digest = xxhash.xxh3_128()
        found = self._read(
            file.path, lambda: self.storage.read_into(file.path, room, digest.update)
        )
        require_recorded(file, found, digest.hexdigest())

    def check_size(self, file: FileRecord, *, limit: int) -> None:
        """Check a file's size against its record, if the files were listed, and against `limit`.

        Raises:
            CorruptDatasetError: the file is missing, not as long as recorded, or beyond `limit`.
        """
        found = self.sizes.get(file.path) if self.sizes else file.size
        if found is None:
            raise CorruptDatasetError(f"missing; {file.size} bytes are recorded")
        if found != file.size:
            raise CorruptDatasetError(f"{found} bytes, expected {file.size}")
        if found > limit:
            raise CorruptDatasetError(f"{found} bytes, expected {limit} at most")

    def read_small(self, path: str) -> bytes:
        """Read a file whose size is not recorded.

        Raises:
            CorruptDatasetError: it is missing, or too large.
            StorageError: it cannot be read.
            StorageDownError: the last few files could not be read either.
        """
        if self.sizes.get(path, 0) > MAX_JSON_BYTES:
            raise CorruptDatasetError(f"{self.sizes[path]} bytes are too many")
        return self._read(path, lambda: self.storage.read(path))

    def _read(self, path: str, read: Callable[[], Read]) -> Read:
        if self._down:
            raise StorageDownError(self._down)
        try:
            data = read()
        except FileNotFoundError:
            raise CorruptDatasetError("missing") from None
        except TransientStorageError as error:
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= MAX_FAILURES:
                self._down = (
                    f"{self.storage} failed {MAX_FAILURES} files in a row, the last one: {error} "
                    "Run the same command again when it answers."
                )
                raise StorageDownError(self._down) from error
            raise
        self._failed_in_a_row = 0
        return data

    def read_manifest(self) -> bytes:
        """Read the manifest of the requested generation.

        Raises:
            NotADatasetError: there is no manifest; the message says what the folder holds.
            UsageError: there is no such generation.
        """
        if MANIFEST in self.sizes:
            data = self.read_small(MANIFEST)
            if self.generation is None:
                return data
            newest = manifest_of(data, where=f"{self.storage}/{MANIFEST}")
            older = chosen_generation(newest, data, self.generation, where=str(self.storage))
            return data if older is None else self.read(older)
        what = "is no dataset. Is the path right?"
        if EXPORT in self.sizes:
            what = (
                "is an export for another trainer, not a dataset. Name the dataset that it was "
                "made from, or make one of it with `shardmill import`."
            )
        elif records := sum(path.startswith(f"{PARTS_FOLDER}/") for path in self.sizes):
            what = (
                f"is an unfinished dataset: {records} parts are recorded. Run `shardmill shard` "
                "again with the same options to finish it."
            )
        raise (NotADatasetError if self.sizes else MissingFolderError)(f"{self.storage} {what}")


def recorded_sizes(files: Iterable[FileRecord]) -> dict[str, int]:
    """Return the size of each file, by its path."""
    return {file.path: file.size for file in files}


def require_recorded(file: FileRecord, size: int, xxh128: str) -> None:
    """Compare the size and hash of a file with its record.

    Raises:
        CorruptDatasetError: they differ.
    """
    if size != file.size:
        raise CorruptDatasetError(f"{size} bytes were read, expected {file.size}")
    if xxh128 != file.xxh128:
        raise CorruptDatasetError(f"its content hash is {xxh128}, expected {file.xxh128}")


def open_tokenizer(files: DatasetFiles, spec: DatasetSpec) -> Tokenizer:
    """Open the tokenizer that is saved with a dataset.

    Raises:
        MissingExtraError: the package that opens it is not installed.
        TokenizerError: it cannot be opened, or the dataset was made with another one.
        StorageError: a file cannot be read.
    """
    where = f"{files.storage}/{TOKENIZER_FOLDER}"
    with new_folder() as folder:
        try:
            for file in TOKENIZER_FILES[spec.tokenizer.kind]:
                (folder / file).write_bytes(files.read_small(f"{TOKENIZER_FOLDER}/{file}"))
            with extras_named():
                tokenizer = open_saved(folder)
        except CorruptDatasetError as error:
            raise TokenizerError(f"{where}/{file}: {error}.") from None
        except TokenizerError as error:
            raise TokenizerError(str(error).replace(str(folder), where)) from None
    if tokenizer.fingerprint != spec.tokenizer.fingerprint:
        raise TokenizerError(
            f"The tokenizer saved in {where} has the fingerprint {tokenizer.fingerprint}, the "
            f"dataset was made with {spec.tokenizer.fingerprint}."
        )
    return tokenizer


def open_dataset(
    storage: Storage, *, generation: str | None = None
) -> tuple[DatasetFiles, Manifest]:
    """Open a published dataset; return its files and manifest.

    Args:
        storage: the storage of the dataset.
        generation: the requested generation; see `DatasetFiles`.

    Raises:
        NotADatasetError: there is no dataset.
        CorruptDatasetError: the manifest is damaged.
    """
    files = DatasetFiles(storage, storage.list(), generation=generation)
    return files, manifest_of(files.read_manifest(), where=f"{storage}/{MANIFEST}")


def read_listed(files: DatasetFiles, file: FileRecord) -> bytes:
    """Read a file and check it against its record; an error about damage names the file.

    Raises:
        CorruptDatasetError: it is missing or damaged.
    """
    with naming(files, file.path):
        return files.read(file)


def read_recorded(storage: Storage, file: FileRecord) -> bytes:
    """Read one file of a dataset and check it against its record; see `read_listed`."""
    return read_listed(DatasetFiles(storage), file)


@contextmanager
def naming(files: DatasetFiles, path: str) -> Iterator[None]:
    """Make errors about damage in the block name the file, and say what to do."""
    try:
        yield
    except (CorruptDatasetError, ValueError, IndexError) as error:
        checks = command("verify", files.storage)
        raise CorruptDatasetError(
            f"{files.storage}/{path}: {error}. {checks} checks every file."
        ) from None


def origin_rows_of(files: DatasetFiles, manifest: Manifest, record: PartRecord) -> SourceRows:
    """Return the source rows of the documents of a part.

    Raises:
        CorruptDatasetError: the table of sources is missing or damaged.
    """
    if manifest.shuffled is None:
        return SourceRows.of_part(record, manifest)
    table = manifest.shuffled.sources
    with naming(files, table.path):
        return SourceRows.of_sources(sources_of(files.read(table)))


def read_record(files: DatasetFiles, manifest: Manifest, part: int) -> PartRecord:
    """Read the record of a part that the manifest lists.

    Raises:
        CorruptDatasetError: it is missing or damaged.
    """
    file = manifest.parts[part].record
    data, where = read_listed(files, file), f"{files.storage}/{file.path}"
    return listed_record(data, manifest, part, where=where)


def read_dataset(
    storage: Storage, *, generation: str | None = None
) -> tuple[DatasetFiles, Manifest, list[PartRecord]]:
    """Open a published dataset; return its files, its manifest, and the records of all parts.

    Args:
        storage: the storage of the dataset.
        generation: the requested generation; see `DatasetFiles`.

    Raises:
        NotADatasetError: there is no dataset.
        CorruptDatasetError: the manifest or a record is damaged.
    """
    files, manifest = open_dataset(storage, generation=generation)
    parts = range(len(manifest.parts))
    records = mapped_ahead(lambda part: read_record(files, manifest, part), parts)
    return files, manifest, list(records)


def read_dataset_manifest(storage: Storage, file: FileRecord) -> Manifest:
    """Read the manifest of the dataset that an output is made from.

    Raises:
        CorruptDatasetError: the storage holds another dataset now.
    """
    return manifest_of(read_recorded(storage, file), where=f"{storage}/{file.path}")


def read_records(storage: Storage, parts: Iterable[int] | None = None) -> dict[int, PartRecord]:
    """Read the part records on the output; see `records_in`."""
    return records_in(storage, PARTS_FOLDER, record_of, parts)


def records_in(
    storage: Storage,
    folder: str,
    record_of: Callable[..., Record],
    parts: Iterable[int] | None = None,
) -> dict[int, Record]:
    """Read the records in a folder of an output; return them by part.

    Args:
        storage: the storage of the output.
        folder: the folder of the records.
        record_of: a function that makes a record from the bytes of a file and its path, `where`.
        parts: the parts whose records are read; all if None.

    Raises:
        CorruptDatasetError: a record is damaged.
    """
    paths = [path for path in storage.list(folder) if path.endswith(".json")]
    if parts is not None:
        wanted = {f"{folder}/{part:05}.json" for part in parts}
        paths = [path for path in paths if path in wanted]

    def read(path: str) -> Record:
        try:
            return record_of(storage.read(path), where=f"{storage}/{path}")
        except CorruptDatasetError as error:
            raise CorruptDatasetError(
                f"{error}. If nothing is published yet, remove it to have its part made again."
            ) from error

    return {record.part: record for record in mapped_ahead(read, paths)}


# Records come first: a part counts while its record exists.
_FOLDERS = (PARTS_FOLDER, *SPLITS, DOCUMENTS_FOLDER, DUPLICATES_FOLDER, DIGESTS_FOLDER)
_OF_GENERATIONS = (SHUFFLE_FOLDER, GENERATIONS_FOLDER, COLUMNS_FOLDER)


def existing_manifest(storage: Storage) -> Manifest | None:
    """Read the manifest; return None if nothing is published.

    Raises:
        CorruptDatasetError: it is damaged.
    """
    try:
        return read_manifest(storage)
    except NotADatasetError:
        return None


def added_before(output: Storage) -> tuple[AddedColumns, ...]:
    """Return the columns that were added to the dataset, if one is published."""
    manifest = existing_manifest(output)
    return () if manifest is None else manifest.added


def beside_parts(manifest: Manifest) -> list[FileRecord]:
    """Return the files of a dataset that publishing makes: all but its parts and their records."""
    indexes = [split.index for split in manifest.splits.values()]
    older: list[FileRecord] = []
    if manifest.generations:
        older = kept_indexes(manifest.splits)
        for each in manifest.generations:
            older += kept_indexes(each.splits)
    return [
        *indexes,
        *manifest.tokenizer_files,
        *tables_of(manifest),
        *digests_of(manifest),
        *(file for each in manifest.added for file in each.files),
        *manifest.older,
        *dict.fromkeys(older),  # several generations may have the same index
    ]


def tables_of(manifest: Manifest) -> list[FileRecord]:
    """Return the tables of sources of a shuffled dataset, one per generation."""
    summaries = [*(each.shuffled for each in manifest.generations), manifest.shuffled]
    return [summary.sources for summary in summaries if summary is not None]


def digests_of(manifest: Manifest) -> list[FileRecord]:
    """Return the files of text hashes of a deduplicated dataset, of all generations."""
    return [file for each in manifest.digests for file in each.files]


def part_of(path: str) -> int | None:
    """Return the number of the part that a file belongs to, or None."""
    folder, _, rest = path.partition("/")
    number = rest.partition("/")[0].partition(".")[0]
    return int(number) if folder in _FOLDERS and number.isdigit() else None


def is_of_extension(path: str, manifest: Manifest) -> bool:
    """Return whether a file belongs to an extension of a generation, published or not."""
    if path.startswith(tuple(f"{each}/" for each in _OF_GENERATIONS)):
        return True
    if re.fullmatch(r"[a-z]+/index(-[0-9a-f]{32})?\.json", path) or is_grown_sources_path(path):
        return True
    part = part_of(path)
    return part is not None and part >= len(manifest.parts)


def remove_unrecorded(
    storage: Storage, recorded: Iterable[int], *, first_part: int, kept: Collection[str] = ()
) -> None:
    """Remove leftovers of killed runs: files of parts that are not recorded, and files of no part.

    Args:
        storage: the storage of the dataset.
        recorded: the parts whose files stay.
        first_part: the first part of the run; all files of earlier parts stay.
        kept: the paths of further files that stay.
    """
    stay = set(recorded)
    for folder in _FOLDERS:
        for path in storage.list(folder):
            part = part_of(path)
            if part is None:
                left = not first_part or is_grown_sources_path(path)
            else:
                left = part >= first_part and (part not in stay or folder == DIGESTS_FOLDER)
            if left and path not in kept:
                storage.remove(path)


def remove_spills(storage: Storage, recorded: Iterable[int] = ()) -> None:
    """Remove the spills of all parts but the recorded ones."""
    stay = {f"{part:05}" for part in recorded}
    for path in storage.list(SHUFFLE_FOLDER):
        if path.rsplit("/", 1)[-1].partition("-")[0].partition(".")[0] not in stay:
            storage.remove(path)
