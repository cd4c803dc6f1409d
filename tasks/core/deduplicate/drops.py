"""Lists of what the second stage leaves out, put between the stages, read by each of its parts.

A list is of one range of hashes. It begins with a table of where in it stands what is left out of
each part of the second stage; a part reads its own bytes of every list.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import xxhash

from streaming_ext.dataset.layout import SHUFFLE_FOLDER
from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.shuffled.keys import Ints, Keys
from streaming_ext.errors import CorruptDatasetError, StorageError
from tasks.core.storage import Storage

_ENTRY: Final = np.dtype([("offset", "<i8"), ("digest", "<u8")])
_ROW_BITS: Final = 40  # of a row of a source or part
_COLUMNS: Final = ("<u8", "<i8", "<i8", "<i8", "<i8")


def drops_path(number: int) -> str:
    """Where the list of a range of hashes lies."""
    return f"{SHUFFLE_FOLDER}/drops-{number:05}.bin"


class Drops:
    """Documents that are left out, by key and then in the order of the sources; (documents,) each.

    Attributes:
        keys: of the shuffle; 0 without one.
        groups, rows: source and row there; without a shuffle, part and row there.
        first_groups, first_rows: the same of the first copy.
    """

    def __init__(
        self, keys: Keys, groups: Ints, rows: Ints, first_groups: Ints, first_rows: Ints
    ) -> None:
        """Sort what is in any order."""
        order = np.lexsort((rows, groups, keys) if keys.any() else (rows, groups))
        self.keys, self.groups, self.rows = keys[order], groups[order], rows[order]
        self.first_groups, self.first_rows = first_groups[order], first_rows[order]

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def joined(cls, pieces: Sequence["Drops"]) -> Self:
        """All of several."""
        none: Sequence[npt.NDArray[Any]] = [np.empty(0, kind) for kind in _COLUMNS]
        return cls(
            *(
                np.concatenate([empty, *(piece.columns()[number] for piece in pieces)])
                for number, empty in enumerate(none)
            )
        )

    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """All arrays, as a list holds them."""
        return self.keys, self.groups, self.rows, self.first_groups, self.first_rows

    @cached_property
    def _by_place(self) -> tuple[Ints, Ints]:
        """A number for each document's place, ascending, and which document that is."""
        places = _places(self.groups, self.rows)
        order = np.argsort(places)
        return places[order], order

    def find(self, groups: Ints, rows: Ints) -> Ints:
        """The index here of each of some documents, -1 where it stays: (documents,)."""
        if not len(self):
            return np.full(len(rows), -1, np.int64)
        places, order = self._by_place
        wanted = _places(groups, rows)
        at = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
        return np.where(places[at] == wanted, order[at], -1)


def _places(groups: Ints, rows: Ints) -> Ints:
    return (groups << _ROW_BITS) | rows


def drops_bytes(drops: Drops, edges: Ints) -> bytes:
    """A list as a file.

    Args:
        drops: of a range of hashes, in the order of the parts of the second stage.
        edges: first document of each of these parts, then their number: (parts + 1,).
    """
    table = np.zeros(len(edges), _ENTRY)
    columns = [column.astype(kind) for column, kind in zip(drops.columns(), _COLUMNS, strict=True)]
    pieces = []
    at = table.nbytes
    for part in range(len(edges) - 1):
        data = b"".join(column[edges[part] : edges[part + 1]].tobytes() for column in columns)
        pieces.append(data)
        table[part] = at, xxhash.xxh3_64_intdigest(data)
        at += len(data)
    table[-1] = at, 0
    return table.tobytes() + b"".join(pieces)


def read_drops(storage: Storage, files: Sequence[FileRecord], part: int) -> Drops:
    """What is left out of a part of the second stage.

    Raises:
        StorageError: a list cannot be read.
        CorruptDatasetError: a list is damaged.
    """
    return Drops.joined(list(_of_part(storage, files, part)))


def _of_part(storage: Storage, files: Sequence[FileRecord], part: int) -> Iterator[Drops]:
    for file in files:
        try:
            begin = part * _ENTRY.itemsize
            entries = storage.read_range(file.path, begin, begin + 2 * _ENTRY.itemsize)
            (start, digest), (end, _) = np.frombuffer(entries, _ENTRY).tolist()
            if not begin < start <= end <= file.size:
                raise _damaged(storage, file)
            if start == end:
                continue
            data = storage.read_range(file.path, start, end)
        except FileNotFoundError as error:
            raise StorageError(
                f"{storage}/{file.path} is gone: something removed it during the run. Run the same "
                "command again."
            ) from error
        if xxhash.xxh3_64_intdigest(data) != digest:
            raise _damaged(storage, file)
        count = len(data) // (8 * len(_COLUMNS))
        yield Drops(
            *(
                np.frombuffer(data, kind, count, 8 * count * number)
                for number, kind in enumerate(_COLUMNS)
            )
        )


def _damaged(storage: Storage, file: FileRecord) -> CorruptDatasetError:
    return CorruptDatasetError(
        f"{storage}/{file.path} is not what this run put there: something wrote over it. Run the "
        "same command again."
    )
