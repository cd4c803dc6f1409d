"""What is recorded against what lies there: a store may say that it kept a file, and lose it."""

from collections.abc import Iterable, Mapping

from streaming_ext.dataset.deduplicated.duplicates import duplicates_path
from streaming_ext.dataset.layout import documents_path, record_path
from streaming_ext.dataset.manifest import Manifest, kept_indexes
from streaming_ext.dataset.record import PartRecord
from streaming_ext.dataset.schema import FileRecord
from streaming_ext.errors import StorageError, TransientStorageError
from tasks.core.storage import Storage

_SHOWN = 3  # files in a message


def lost_files(sizes: Mapping[str, int], wanted: Iterable[FileRecord]) -> list[str]:
    """Those files that are not there, or not as long as recorded.

    Args:
        sizes: path -> size in bytes, as `Storage.list` gives them.
        wanted: what should be there.
    """
    return [file.path for file in wanted if sizes.get(file.path) != file.size]


def files_of_part(part: int) -> tuple[str, ...]:
    """Paths of the files of a part but for its shards."""
    return record_path(part), documents_path(part), duplicates_path(part)


def beside_parts(manifest: Manifest) -> list[FileRecord]:
    """What a dataset holds beside its parts and their records: publishing makes all of it."""
    indexes = [split.index for split in manifest.splits.values()]
    return [
        *indexes,
        *manifest.tokenizer_files,
        *tables_of(manifest),
        *digests_of(manifest),
        *of_generations(manifest),
    ]


def tables_of(manifest: Manifest) -> list[FileRecord]:
    """The tables of sources of a shuffled dataset, of each of its generations."""
    summaries = [*(each.shuffled for each in manifest.generations), manifest.shuffled]
    return [summary.sources for summary in summaries if summary is not None]


def digests_of(manifest: Manifest) -> list[FileRecord]:
    """The hashes of the texts of a dataset without copies, of all generations."""
    return [file for each in manifest.digests for file in each.files]


def of_generations(manifest: Manifest) -> list[FileRecord]:
    """What an extended dataset holds so that each of its generations can be read."""
    if not manifest.generations:
        return []
    kept = kept_indexes(manifest.splits)
    for each in manifest.generations:
        kept += [each.manifest, *each.kept_indexes]
    return list(dict.fromkeys(kept))  # an index may be that of several generations


def require_all_there(manifest: Manifest, records: Iterable[PartRecord], storage: Storage) -> None:
    """Look at what lies on the output before the manifest says that it is whole.

    Raises:
        TransientStorageError: it lost an index or a file of the tokenizer, which go once more when
            publishing is tried again.
        StorageError: it lost a file of a part.
    """
    require_there(manifest, records, beside_parts(manifest), storage)


def require_there(
    manifest: Manifest,
    records: Iterable[PartRecord],
    beside: Iterable[FileRecord],
    storage: Storage,
) -> None:
    """The same, of some of the files beside the parts."""
    sizes = storage.list()
    of_parts = [file for record in records for file in record.files()]
    of_parts += [part.record for part in manifest.parts]
    if lost := lost_files(sizes, of_parts):
        raise StorageError(
            f"{storage} said that it kept {_named(lost)}, and does not hold "
            f"{'it' if len(lost) == 1 else 'them'} as written. The dataset is not published. "
            "Run the same command again: the parts that lack a file are made again."
        )
    if lost := lost_files(sizes, beside):
        raise TransientStorageError(
            f"{storage} said that it kept {_named(lost)}, and does not hold "
            f"{'it' if len(lost) == 1 else 'them'} as written. The dataset is not published. "
            "Run the same command again."
        )


def put_manifest(storage: Storage, path: str, data: bytes) -> None:
    """Put the manifest that makes an output count, and look whether it is there.

    The caller holds the output.

    Raises:
        TransientStorageError: it is not there as it was put; it goes once more when publishing is
            tried again.
        StorageError: another run took the output over meanwhile, or it cannot be put.
    """
    storage.require_held()  # what came before may have taken hours
    storage.put(path, data)
    try:
        is_kept = storage.read(path) == data
    except FileNotFoundError:
        is_kept = False
    if not is_kept:
        raise TransientStorageError(
            f"{storage} said that it kept {path}, and does not hold it as written, so nothing is "
            "published. Run the same command again."
        )


def _named(paths: list[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more files" if more > 0 else "")
