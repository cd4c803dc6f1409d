"""A published dataset that a run of the same sources finds: whole, or to be published again."""

from collections.abc import Mapping, Sequence

from streaming_ext.dataset.layout import EXTENDING, MANIFEST, SHUFFLE_FOLDER
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.errors import ConfigMismatchError, CorruptDatasetError, command
from tasks.core.outputs.whole import digests_of
from tasks.core.shuffle.gathering import Gathering
from tasks.core.storage import Storage


def has_leftovers(sizes: Mapping[str, int]) -> bool:
    """Whether runs of the first stage are left that are not of an extension under way."""
    return EXTENDING not in sizes and any(path.startswith(f"{SHUFFLE_FOLDER}/") for path in sizes)


def to_grow(storage: Storage) -> str:
    """What to do where a run asks for other sources than a published dataset has."""
    return f"Sources that are new are added to it by {command('extend', storage, 'SOURCE...')}."


def gathering_of(manifest: Manifest | None) -> Gathering:
    """What a published dataset was gathered from, as far as publishing it again needs that."""
    if manifest is None:
        return Gathering()
    digests = manifest.digests[-1] if manifest.digests else None
    return Gathering(summary=manifest.shuffled, digests=digests)


def require_can_be_made_again(storage: Storage, manifest: Manifest, lost: Sequence[str]) -> None:
    """Refuse to publish again what publishing alone does not make whole.

    Args:
        storage: names the dataset in messages.
        manifest: of it.
        lost: files of no part that are gone.

    Raises:
        ConfigMismatchError: it was extended, and would lose its older generations.
        CorruptDatasetError: it lost hashes of its texts.
    """
    if manifest.generations:
        raise ConfigMismatchError(
            f"{storage} was extended, and lost {', '.join(lost)}. This run would "
            "publish it without its older generations: "
            f"{command('extend', storage, 'SOURCE...')} with the same sources makes again what "
            "was lost."
        )
    if gone := {file.path for file in digests_of(manifest)} & set(lost):
        raise CorruptDatasetError(
            f"{storage} is published, but {min(gone)} is missing or cut short. Remove {MANIFEST} "
            "to have it made again."
        )
