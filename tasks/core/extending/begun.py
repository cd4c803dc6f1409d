"""An extension under way: the file that says so, and what killed ones left.

Parts of an extension have the numbers behind those of the manifest, so nothing that it writes is
read as part of the dataset before the next generation is published.
"""

import json
import re

from streaming_ext.dataset.layout import (
    DOCUMENTS_FOLDER,
    DUPLICATES_FOLDER,
    EXTENDING,
    GENERATIONS_FOLDER,
    PARTS_FOLDER,
    SHUFFLE_FOLDER,
    SPLITS,
)
from streaming_ext.dataset.manifest import Manifest
from tasks.core.planning.run_plan import Parent
from tasks.core.storage import Storage

_FOLDERS = (PARTS_FOLDER, *SPLITS, DOCUMENTS_FOLDER, DUPLICATES_FOLDER)  # records first


def is_begun(storage: Storage, parent: Parent) -> bool:
    """Whether an extension of this very generation was begun."""
    try:
        return storage.read(EXTENDING) == _said(parent)
    except FileNotFoundError:
        return False


def begin(storage: Storage, parent: Parent, recorded: set[int]) -> None:
    """Remove what killed extensions left that does not count, and say that one is under way.

    The caller holds the dataset.

    Args:
        storage: the dataset's.
        parent: the generation that is extended.
        recorded: parts that stay.
    """
    if not is_begun(storage, parent):
        storage.put(EXTENDING, _said(parent))
        for path in storage.list(SHUFFLE_FOLDER):
            storage.remove(path)
    for folder in _FOLDERS:
        for path in storage.list(folder):
            part = part_of(path)
            if part is not None and part >= len(parent.manifest.parts) and part not in recorded:
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
    if re.fullmatch(r"[a-z]+/index(-[0-9a-f]{32})?\.json", path):
        return True
    part = part_of(path)
    return part is not None and part >= len(manifest.parts)


def _said(parent: Parent) -> bytes:
    return (json.dumps({"of": parent.file.xxh128}) + "\n").encode()
