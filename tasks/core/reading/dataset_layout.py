"""The layout of a dataset: the files that belong to each part, and to none."""

import re
from collections.abc import Collection, Iterable

from streaming_ext.base.errors import NotADatasetError
from streaming_ext.format.layout import (
    COLUMNS_FOLDER,
    DIGESTS_FOLDER,
    DOCUMENTS_FOLDER,
    DUPLICATES_FOLDER,
    GENERATIONS_FOLDER,
    PARTS_FOLDER,
    SHUFFLE_FOLDER,
    SPLITS,
)
from streaming_ext.format.manifest import AddedColumns, Manifest, kept_indexes
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.schema import FileRecord
from streaming_ext.format.shuffled import is_grown_sources_path
from streaming_ext.store import Storage

# records first: they make a part count
_FOLDERS = (PARTS_FOLDER, *SPLITS, DOCUMENTS_FOLDER, DUPLICATES_FOLDER, DIGESTS_FOLDER)
_OF_GENERATIONS = (SHUFFLE_FOLDER, GENERATIONS_FOLDER, COLUMNS_FOLDER)


def existing_manifest(storage: Storage) -> Manifest | None:
    """The manifest; None if nothing is published.

    Raises:
        CorruptDatasetError: it is damaged.
    """
    try:
        return read_manifest(storage)
    except NotADatasetError:
        return None


def added_before(output: Storage) -> tuple[AddedColumns, ...]:
    """The columns that were added to a dataset, which is published again."""
    manifest = existing_manifest(output)
    return () if manifest is None else manifest.added


def beside_parts(manifest: Manifest) -> list[FileRecord]:
    """The files of a dataset beside its parts and their records: publishing makes all of them."""
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
        *dict.fromkeys(older),  # an index may be that of several generations
    ]


def tables_of(manifest: Manifest) -> list[FileRecord]:
    """The tables of sources of a shuffled dataset, of each of its generations."""
    summaries = [*(each.shuffled for each in manifest.generations), manifest.shuffled]
    return [summary.sources for summary in summaries if summary is not None]


def digests_of(manifest: Manifest) -> list[FileRecord]:
    """The hashes of the texts of a deduplicated dataset, of all generations."""
    return [file for each in manifest.digests for file in each.files]


def part_of(path: str) -> int | None:
    """The part that a file belongs to; None if it belongs to no part."""
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
    """Remove what killed runs left of parts that are not recorded, and what belongs to no part.

    Args:
        storage: the storage of the dataset.
        recorded: the parts that stay.
        first_part: the first part of the run; everything of the parts before it stays.
        kept: the files of no part that stay.
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
