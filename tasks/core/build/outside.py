"""What lies around an output: no other dataset, perhaps its own sources, its scratch folder."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from streaming_ext.base.errors import DatasetError, NewerVersionError, StorageError, UsageError
from streaming_ext.format.layout import (
    BUILD,
    DIGESTS_FOLDER,
    DOCUMENTS_FOLDER,
    DUPLICATES_FOLDER,
    GENERATIONS_FOLDER,
    MANIFEST,
    PARTS_FOLDER,
    RUNS_FOLDER,
    SHUFFLE_FOLDER,
    SPLITS,
    TOKENIZER_FOLDER,
)
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.schema import content_hash
from streaming_ext.store import Storage, open_storage
from streaming_ext.store.locations import local_path
from streaming_ext.store.scratch import user_scratch
from streaming_ext.text.sources import SourceFile, is_remote
from tasks.core.options import Execution

_MADE = {
    *SPLITS,
    DOCUMENTS_FOLDER,
    PARTS_FOLDER,
    RUNS_FOLDER,
    TOKENIZER_FOLDER,
    DIGESTS_FOLDER,
    DUPLICATES_FOLDER,
    GENERATIONS_FOLDER,
    SHUFFLE_FOLDER,
    MANIFEST,
}


def made_by_output(output: str) -> Callable[[SourceFile], bool]:
    """Says which sources are files of the output itself, if it lies in a folder of sources.

    Args:
        output: a folder or URL.
    """
    remote = is_remote(output)
    root = output.rstrip("/") if remote else os.path.realpath(local_path(output))
    real = cache(os.path.realpath)

    def made(source: SourceFile) -> bool:
        if source.remote != remote:
            return False
        folder, _, name = source.url.rpartition("/")
        path = f"{folder if remote else real(folder)}/{name}"
        below = path.removeprefix(f"{root}/")
        return below != path and below.split("/", 1)[0] in _MADE

    is_started = any((Path(root) / path).is_file() for path in (MANIFEST, BUILD))
    return made if remote or is_started else lambda source: False


def open_other(url: str, output: Storage) -> Storage:
    """A dataset that an output is made of.

    Raises:
        UsageError: it is the output itself.
    """
    dataset = open_storage(url)
    if str(dataset) == str(output):
        raise UsageError(f"{output} is the dataset itself. Use another --output.")
    return dataset


def require_outside(storage: Storage) -> None:
    """Refuse an output inside a dataset, published or started; nothing is written.

    Raises:
        UsageError: naming the dataset.
    """
    for above, _ in storage.above():
        if _is_dataset(above):
            raise UsageError(
                f"{storage} lies inside the dataset {above}, which would hold files then that "
                "belong to no part of it. Use another --output."
            )


def _is_dataset(storage: Storage) -> bool:
    """Whether a folder is a dataset, published or started."""
    try:
        try:
            read_manifest(storage)
        except NewerVersionError:
            pass
        except DatasetError:  # none, or a manifest.json of something else
            storage.read(BUILD)
    except FileNotFoundError:
        return False
    except StorageError as error:
        if error.transient:
            raise
        return False  # what may not be read cannot be told
    return True


def scratch_folder(config: Execution, storage: Storage) -> Path:
    """The folder for work in progress: the configured one, or that of the storage."""
    if config.scratch is None:
        return storage.scratch_parent / f".{storage.name}.scratch"
    return scratch_base(config, storage)


def scratch_base(config: Execution, storage: Storage) -> Path:
    """The folder on this host for work on this output: as configured, else a temporary one."""
    # Two outputs may have one name: a hash of the path keeps their folders apart.
    name = f"{storage.name}-{content_hash(str(storage).encode())[:8]}"
    if config.scratch is None:
        return user_scratch() / name
    return local_path(config.scratch).absolute() / name
