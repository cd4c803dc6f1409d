"""A stream of ids, cut into files: at fixed positions, or between documents."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from tasks.core.derive.export_format import ExportFiles, HashedFile
from tasks.core.reading.documents import DocumentBlock, Ids

Dtype = np.dtype[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamFiles:
    """Files that hold a stream of values and begin with a head; all parts write them.

    3 values per file, and a part that holds the values 2 to 6 of the stream:
    file 0: . . 2    file 1: 3 4 5    file 2: 6 . .

    Attributes:
        path: makes the path of a file from its number, from 0.
        dtype: the type of a value.
        total: the number of values in the stream.
        each: the largest number of values in a file.
        head: makes the head of a file from its number of values; all heads have one length.
    """

    path: Callable[[int], str]
    dtype: Dtype
    total: int
    each: int
    head: Callable[[int], bytes]

    @property
    def counts(self) -> dict[str, int]:
        """Values of each file, by its path."""
        return {
            self.path(number): min(self.each, self.total - first)
            for number, first in enumerate(range(0, self.total, self.each))
        }

    def locate(self, position: int) -> tuple[str, int, bytes, int]:
        """Locate a value by its position in the stream.

        Returns:
            The file; the first byte in it; bytes that come before the value; the number of values
            from this one on that the file can hold.
        """
        number, first = divmod(position, self.each)
        start, head = 0, self.head(min(self.each, self.total - position + first))
        if first:  # whoever writes the first value writes the head
            start, head = len(head) + first * self.dtype.itemsize, b""
        return self.path(number), start, head, self.each - first


class StreamWriter:
    """Writes consecutive values of a stream into shared files.

    Args:
        out: the files to write to.
        files: the files of the stream.
        position: the position of the first value in the stream.
    """

    def __init__(self, out: ExportFiles, files: StreamFiles, position: int) -> None:
        self._out, self._files, self._position = out, files, position
        self._sink: HashedFile | None = None
        self._path = ""

    def write(self, values: npt.NDArray[Any]) -> None:
        """Append values."""
        while len(values):
            path, start, head, room = self._files.locate(self._position)
            if self._sink is None or path != self._path:
                self.__exit__(None)
                self._sink, self._path = self._out.span(path, start), path
            self._sink.write(head)
            self._sink.write(np.ascontiguousarray(values[:room], self._files.dtype))
            self._position += len(values[:room])
            values = values[room:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *why: object) -> None:
        """End the last span."""
        if self._sink is not None:
            self._sink.__exit__(*why)


Block = tuple[int, Ids, Ints]  # number of a file, and ids and lengths of documents in it


def cut_between_documents(
    documents: Iterable[DocumentBlock], most: int, *, extra: int = 0
) -> Iterator[tuple[int, Iterator[Block]]]:
    """Cut a stream between documents into files; a document that is larger has a file of its own.

    At most 10 ids per file, documents of 4, 5, 12 and 3 ids: files of 4 + 5, 12, 3.

    Args:
        documents: the documents in order.
        most: the most ids of a file.
        extra: the room that a document takes besides its ids, in ids.

    Yields:
        The number of a file, and what is in it.
    """
    return groupby(_blocks(documents, most, extra), itemgetter(0))


def _blocks(documents: Iterable[DocumentBlock], most: int, extra: int) -> Iterator[Block]:
    number, held = -1, most + 1
    for block in documents:
        # filled: (documents,), what is taken up to the end of each
        filled = block.ends + extra * np.arange(1, len(block.ends) + 1)
        first = begin = before = 0
        while first < len(filled):
            last = int(np.searchsorted(filled, before + most - held, side="right"))
            if last <= first:  # the next document does not fit
                number, held = number + 1, 0
                last = int(np.searchsorted(filled, before + most, side="right"))
            last = max(last, first + 1)
            held += int(filled[last - 1]) - before
            end, before = int(block.ends[last - 1]), int(filled[last - 1])
            yield number, block.stream[begin:end], block.lengths[first:last]
            first, begin = last, end
