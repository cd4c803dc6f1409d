"""Reading of manifests, of records of parts, and of the files that they list."""

from streaming_ext.base.errors import CorruptDatasetError, NotADatasetError
from streaming_ext.format.layout import MANIFEST, record_path
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, content_hash, from_json
from streaming_ext.store import Storage
from streaming_ext.store.remote import Remote


def manifest_of(data: bytes, *, where: str) -> Manifest:
    """Parse and check the manifest in a file.

    Raises:
        CorruptDatasetError: the manifest is damaged; `where` names the file.
    """
    return from_json(Manifest, data, where=where)


def record_of(data: bytes, *, where: str) -> PartRecord:
    """Parse and check the record in a file.

    Raises:
        CorruptDatasetError: the record is damaged; `where` names the file.
    """
    return from_json(PartRecord, data, where=where)


def listed_record(data: bytes, manifest: Manifest, part: int, *, where: str) -> PartRecord:
    """Parse the record in a file, and check that it agrees with the manifest.

    A record repeats the specification of its dataset, so that a changed manifest is found, for
    instance one with another end-of-text id.

    Raises:
        CorruptDatasetError: record and manifest contradict each other.
    """
    record = record_of(data, where=where)
    if differences := record.spec.differences(
        manifest.spec_of(part), ours="the record has", theirs="the manifest"
    ):
        shown = "; ".join(differences)
        raise CorruptDatasetError(f"{where} and {MANIFEST} contradict each other: {shown}.")
    return record


def read_manifest(storage: Storage) -> Manifest:
    """Read the manifest of a dataset.

    Raises:
        NotADatasetError: there is no manifest.
        CorruptDatasetError: the manifest is damaged.
    """
    try:
        data = storage.read(MANIFEST)
    except FileNotFoundError as error:
        raise NotADatasetError(
            f"{storage}: no {MANIFEST}, so this is no finished dataset. "
            "Run `shardmill shard` with the same options again to finish it."
        ) from error
    return manifest_of(data, where=f"{storage}/{MANIFEST}")


def read_record(storage: Storage, part: int) -> PartRecord:
    """Read the record of a part.

    Raises:
        FileNotFoundError: there is no record, so the part does not count.
        CorruptDatasetError: the record is damaged.
    """
    path = record_path(part)
    return record_of(storage.read(path), where=f"{storage}/{path}")


def read_listed(remote: Remote, file: FileRecord) -> bytes:
    """Read a file that a manifest or record lists.

    Raises:
        FileMissingError: there is no such file.
        CorruptDatasetError: size or hash of the file differ, also when it is fetched again.
    """

    def checked(data: bytes) -> bytes:
        if len(data) != file.size or content_hash(data) != file.xxh128:
            raise CorruptDatasetError(
                f"{remote.url}/{file.path} is not the file that the dataset describes: "
                f"{min(len(data), file.size + 1)} bytes, expected {file.size} with XXH3-128 "
                f"{file.xxh128}, fetched twice. The dataset was rewritten or damaged: publish it "
                "again."
            )
        return data

    return remote.read_checked(file.path, checked, limit=file.size)
