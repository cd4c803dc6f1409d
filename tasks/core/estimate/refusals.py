"""What cannot be planned for: outputs that there are not, more parts than can be reckoned with."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streaming_ext.errors import ScratchError, UsageError
from streaming_ext.storage.dialects.choice import OBJECT_STORES
from streaming_ext.storage.local_paths import local_path, require_writable_name
from tasks.core.estimate.config import MOST_PARTS
from tasks.core.storage import LocalStorage, open_storage
from tasks.core.storage.scratch import temporary_folder


def require_output(output: str) -> None:
    """Refuse what no run could write to.

    Raises:
        UsageError: another scheme than those of storages, or a file.
    """
    scheme, separator, _ = output.partition("://")
    if separator and scheme in OBJECT_STORES:
        return  # not asked for anything: nobody needs credentials to plan
    storage = open_storage(output)
    if isinstance(storage, LocalStorage):
        storage.require_no_file()


def require_few(number: int, what: str) -> None:
    """Refuse more files or parts than there is memory for.

    Raises:
        UsageError: these are.
    """
    if number > MOST_PARTS:
        raise UsageError(
            f"--total-size makes {number:,} {what}, and no more than {MOST_PARTS:,} can be "
            "reckoned with. Give a smaller one; with --total-files and --part-size there are fewer."
        )


def sample_place(scratch: str | None) -> Path:
    """Where the sample is written: the configured folder or the temporary one.

    Raises:
        UsageError: a name that records cannot hold.
    """
    if scratch is None:
        return temporary_folder()
    require_writable_name(scratch)
    return local_path(scratch)


@contextmanager
def sample_folder(place: Path) -> Iterator[Path]:
    """A folder for the sample, removed with the block.

    Raises:
        ScratchError: it cannot be made.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="shardmill-plan-", dir=place)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise ScratchError(f"Cannot write to scratch {place}: {reason}.") from error
    with made as name:
        yield Path(name)
