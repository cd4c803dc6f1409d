"""What lies around an output: no other dataset, but perhaps its own sources."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from streaming_ext.base.errors import DatasetError, NewerVersionError, StorageError, UsageError
from streaming_ext.format.layout import (
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
from streaming_ext.store import Storage
from streaming_ext.store.locations import local_path
from streaming_ext.text.sources import SourceFile, is_remote

_FOLDERS = {*SPLITS, DOCUMENTS_FOLDER, PARTS_FOLDER, RUNS_FOLDER, TOKENIZER_FOLDER}
_MADE = _FOLDERS | {
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

    return made if remote or _is_started(Path(root)) else lambda source: False


def _is_started(root: Path) -> bool:
    """Whether a run wrote to a folder, which may be another one with a `train` in it."""
    return (
        (root / MANIFEST).is_file()
        or any((root / PARTS_FOLDER).glob("*.json"))
        or (root / SHUFFLE_FOLDER).is_dir()
        or all((root / folder).is_dir() for folder in (RUNS_FOLDER, DOCUMENTS_FOLDER))
    )


def require_outside(storage: Storage) -> None:
    """Refuse an output inside a dataset, published or started; nothing is written.

    Raises:
        UsageError: naming the dataset.
    """
    for above, below in storage.above():
        if _is_dataset(above, below.split("/", 1)[0]):
            raise UsageError(
                f"{storage} lies inside the dataset {above}, which would hold files then that "
                "belong to no part of it. Use another --output."
            )


def _is_dataset(above: Storage, folder: str) -> bool:
    """Whether a folder is a dataset's, seen from a way that leads into it by `folder`."""
    try:
        read_manifest(above)
    except NewerVersionError:
        return True
    except DatasetError:  # none, or a manifest.json of something else
        pass
    except StorageError as error:
        if error.transient:
            raise
        return False  # what may not be read cannot be told
    else:
        return True
    if folder not in _FOLDERS:
        return False
    return any(path.endswith(".json") for path in above.list(PARTS_FOLDER))
