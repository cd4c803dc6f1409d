"""The records of all parts that lie on an output, read some at a time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from streaming_ext.dataset.layout import PARTS_FOLDER, record_path
from streaming_ext.dataset.reading import record_of
from streaming_ext.dataset.record import PartRecord
from streaming_ext.errors import CorruptDatasetError
from tasks.core.storage import Storage

_IO_THREADS = 8


class HasPart(Protocol):
    """A record of any kind."""

    @property
    def part(self) -> int:
        """Its number."""
        ...


Record = TypeVar("Record", bound=HasPart)


def read_records(storage: Storage, parts: Iterable[int] | None = None) -> dict[int, PartRecord]:
    """The part records on the output, by part.

    Args:
        storage: the dataset's.
        parts: those to look at; all unless given.

    Raises:
        CorruptDatasetError: a record is damaged.
    """
    there = storage.list(PARTS_FOLDER)
    wanted = there if parts is None else [p for part in parts if (p := record_path(part)) in there]
    return read_all(storage, wanted, record_of)


def read_all(
    storage: Storage, paths: Iterable[str], record_of: Callable[..., Record]
) -> dict[int, Record]:
    """The records that some files hold, by part.

    Args:
        storage: the dataset's.
        paths: of the files.
        record_of: reads one from the bytes of a file and `where` that lies.

    Raises:
        CorruptDatasetError: a record is damaged.
    """

    def read(path: str) -> Record:
        try:
            return record_of(storage.read(path), where=f"{storage}/{path}")
        except CorruptDatasetError as error:
            raise CorruptDatasetError(
                f"{error}. If nothing is published yet, remove it to have its part made again."
            ) from error

    with ThreadPoolExecutor(_IO_THREADS) as threads:
        return {record.part: record for record in threads.map(read, paths)}
