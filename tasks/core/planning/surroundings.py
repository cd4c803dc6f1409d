"""What lies around an output: a dataset must not be made inside another one."""

from streaming_ext.dataset.layout import (
    DOCUMENTS_FOLDER,
    PARTS_FOLDER,
    RUNS_FOLDER,
    SPLITS,
    TOKENIZER_FOLDER,
)
from streaming_ext.dataset.reading import read_manifest
from streaming_ext.errors import DatasetError, NewerVersionError, StorageError, UsageError
from tasks.core.storage import Storage

_FOLDERS = {*SPLITS, DOCUMENTS_FOLDER, PARTS_FOLDER, RUNS_FOLDER, TOKENIZER_FOLDER}


def require_outside(storage: Storage) -> None:
    """Refuse an output inside a dataset, published or begun; nothing is written.

    Raises:
        UsageError: naming the dataset.
    """
    for place, below in storage.above():
        if _is_dataset(place, below.split("/", 1)[0]):
            raise UsageError(
                f"{storage} lies inside the dataset {place}, which would hold files then that "
                "belong to no part of it. Use another --output."
            )


def _is_dataset(place: Storage, folder: str) -> bool:
    """Whether a folder is a dataset's, seen from a way that leads into it by `folder`."""
    try:
        read_manifest(place)
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
    return any(path.endswith(".json") for path in place.list(PARTS_FOLDER))
