"""A split's ids back to back, in one file or cut into several of so many ids.

3 ids a file, a part that holds the ids 2 to 6 of the split:
file 0: . . 2    file 1: 3 4 5    file 2: 6 . .
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tasks.core.derive.export_format import Out, Sink
from tasks.core.reading.documents import Ids


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatFiles:
    """The files of one split.

    Attributes:
        path: of the file of a number, from 0.
        dtype: of an id.
        total: ids of the split.
        each: ids of a file, at most.
        head: bytes before the ids.
    """

    path: Callable[[int], str]
    dtype: np.dtype[np.generic]
    total: int
    each: int
    head: int = 0

    @property
    def count(self) -> int:
        """How many files there are; one also where the split is empty."""
        return max(1, -(-self.total // self.each))

    def held(self, number: int) -> int:
        """Ids of a file."""
        return min(self.each, self.total - number * self.each)

    def sizes(self) -> dict[str, int]:
        """The size of each file in bytes, by its path."""
        return {
            self.path(number): self.head + self.held(number) * self.dtype.itemsize
            for number in range(self.count)
        }

    def spans(self, first: int, count: int) -> Iterator[tuple[int, int, slice]]:
        """Where ids go: the file, the place in it, and which of the ids.

        Args:
            first: place of the first of them in the split.
            count: how many they are.
        """
        done = 0
        while done < count:
            number, at = divmod(first + done, self.each)
            taken = min(self.each - at, count - done)
            yield number, at, slice(done, done + taken)
            done += taken


def sizes_of(splits: Iterable[FlatFiles]) -> dict[str, int]:
    """The size of each file of several splits in bytes, by its path."""
    return {path: size for files in splits for path, size in files.sizes().items()}


class FlatWriter:
    """Writes consecutive ids of a split into its files."""

    def __init__(self, out: Out, files: FlatFiles, first: int) -> None:
        """Begin at a place of the split.

        Args:
            out: takes the files.
            files: of the split.
            first: the place, in ids.
        """
        self._out, self._files, self._next = out, files, first
        self._sink: Sink | None = None
        self._number = -1

    def write(self, ids: Ids) -> None:
        """Append ids."""
        files = self._files
        for number, at, chosen in files.spans(self._next, len(ids)):
            if self._sink is None or number != self._number:
                self.close()
                start = files.head + at * files.dtype.itemsize
                self._sink, self._number = self._out.piece(files.path(number), start), number
            self._sink.write(np.ascontiguousarray(ids[chosen], files.dtype))
        self._next += len(ids)

    def close(self) -> None:
        """End what is begun."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None
