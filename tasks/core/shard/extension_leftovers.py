"""An extension under way: the file that says so, and what killed ones left.

Parts of an extension have the numbers behind those of the manifest, so nothing that it writes is
read as part of the dataset before the next generation is published.
"""

import json
import re
from collections.abc import Collection, Iterable

from streaming_ext.format.layout import (
    BUILD,
    DIGESTS_FOLDER,
    DOCUMENTS_FOLDER,
    DUPLICATES_FOLDER,
    GENERATIONS_FOLDER,
    PARTS_FOLDER,
    SHUFFLE_FOLDER,
    SPLITS,
)
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.shuffled import is_grown_sources_path
from streaming_ext.store import Storage
from tasks.core.shard.publish import tables_of
from tasks.core.shard.run_plan import Parent

# records first
_FOLDERS = (PARTS_FOLDER, *SPLITS, DOCUMENTS_FOLDER, DUPLICATES_FOLDER, DIGESTS_FOLDER)


def is_begun(storage: Storage, parent: Parent) -> bool:
    """Whether an extension of this very generation was begun."""
    try:
        mark = json.loads(storage.read(BUILD))
    except FileNotFoundError:
        return False
    of: bool = mark == {"kind": "extend", "identity": parent.file.model_dump(mode="json")}
    return of


def begin_extension(storage: Storage, parent: Parent) -> None:
    """Remove what extensions of other generations left.

    The caller holds the dataset.
    """
    if is_begun(storage, parent):
        return
    for path in storage.list(SHUFFLE_FOLDER):
        storage.remove(path)
    remove_unrecorded(storage, parent, ())


def remove_unrecorded(
    storage: Storage, parent: Parent, recorded: Iterable[int], *, beside: Collection[str] = ()
) -> None:
    """Remove what killed extensions left that does not count; nothing of the dataset.

    Args:
        storage: the dataset's.
        parent: the generation that is extended.
        recorded: parts that stay.
        beside: files of no part that stay.
    """
    stay = set(recorded)
    kept = {*beside, *(file.path for file in tables_of(parent.manifest))}
    for folder in _FOLDERS:
        for path in storage.list(folder):
            part = part_of(path)
            left = part is not None and part >= len(parent.manifest.parts) and part not in stay
            if (left or is_grown_sources_path(path)) and path not in kept:
                storage.remove(path)


def part_of(path: str) -> int | None:
    """The part whose file a path is, None where it is of no part."""
    folder, _, rest = path.partition("/")
    number = rest.partition("/")[0].partition(".")[0]
    return int(number) if folder in _FOLDERS and number.isdigit() else None


def is_of_extension(path: str, manifest: Manifest) -> bool:
    """Whether a file is none of a generation's, but of an extension of it, published or not."""
    if path.startswith((f"{SHUFFLE_FOLDER}/", f"{GENERATIONS_FOLDER}/")):
        return True
    if re.fullmatch(r"[a-z]+/index(-[0-9a-f]{32})?\.json", path) or is_grown_sources_path(path):
        return True
    part = part_of(path)
    return part is not None and part >= len(manifest.parts)
