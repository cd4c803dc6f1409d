"""The generations of a dataset that was extended: finding one by its hash, and its files.

An extension adds parts and replaces the manifest. What it replaces stays beside the new one:

    manifest.json                    of the newest generation: the commit point
    generations/<hash>.json          of an older one, under its content hash
    train/index.json                 of the newest generation, for stock readers
    train/index-<hash>.json          of each generation, under its content hash
"""

from collections.abc import Collection
from typing import Final

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.layout import Split, kept_index_path
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.schema import FileRecord
from streaming_ext.errors import UsageError

_SHOWN: Final = 12  # digits of a hash in a message


def chosen_generation(
    manifest: Manifest, data: bytes, prefix: str | None, *, where: str
) -> FileRecord | None:
    """The manifest of the generation that a prefix of its hash names; None for the newest one.

    Args:
        manifest: of the newest generation.
        data: its bytes.
        prefix: of the content hash of a manifest; None for the newest.
        where: the dataset, for messages.

    Raises:
        UsageError: no generation has it, or several.
    """
    if prefix is None:
        return None
    own = content_hash(data)
    older = [each.manifest for each in manifest.generations]
    found = {file.xxh128 for file in older} | {own}
    matching = sorted(each for each in found if prefix and each.startswith(prefix.lower()))
    if len(matching) != 1:
        there = ", ".join([*(file.xxh128[:_SHOWN] for file in older), f"{own[:_SHOWN]} (newest)"])
        said = f"{len(matching)} generations have" if matching else "no generation has"
        raise UsageError(
            f"{where}: {said} a hash that begins with {prefix!r}. There are, the oldest first: "
            f"{there}."
        )
    return next((file for file in older if file.xxh128 == matching[0]), None)


def index_file(split: Split, index: FileRecord, there: Collection[str]) -> FileRecord:
    """The index of a split as a generation lists it, where it lies unchanged.

    Args:
        split: of the dataset.
        index: as the manifest lists it.
        there: paths of the files of the dataset.
    """
    kept = kept_index_path(split, index.xxh128)
    return index.model_copy(update={"path": kept}) if kept in there else index
