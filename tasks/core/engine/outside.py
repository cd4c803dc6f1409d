"""The surroundings of an output: no other dataset, and its scratch folder."""

from pathlib import Path

from streaming_ext.base.errors import UsageError
from streaming_ext.format.schema import content_hash
from streaming_ext.store import Storage, open_storage
from streaming_ext.store.locations import local_path
from streaming_ext.store.scratch import user_scratch
from streaming_ext.text.sources.datasets import is_dataset
from tasks.core.options import Execution


def open_other(url: str, output: Storage) -> Storage:
    """Open a dataset that an output is made of.

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
        if is_dataset(str(above)):
            raise UsageError(
                f"{storage} lies inside the dataset {above}, which would hold files then that "
                "belong to no part of it. Use another --output."
            )


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
