"""How a stream of ids is cut into files: at positions that a layout fixes, or between documents."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from tasks.core.derive.export_format import ExportFiles, Sink
from tasks.core.reading.documents import Documents, Ids

Dtype = np.dtype[Any]


class Layout(Protocol):
    """Where each value of a stream is stored in shared files."""

    @property
    def dtype(self) -> Dtype:
        """Of a value."""
        ...

    def locate(self, position: int) -> tuple[str, int, bytes, int]:
        """Where a value is stored, by its position in the stream.

        Returns:
            The file; the first byte in it; bytes that come before the value; how many values from
            this one on are stored back to back.
        """
        ...


class StreamWriter:
    """Writes consecutive values of a stream into shared files.

    Args:
        out: takes the files.
        layout: says where each value is stored.
        position: of the first value in the stream.
    """

    def __init__(self, out: ExportFiles, layout: Layout, position: int) -> None:
        self._out, self._layout, self._position = out, layout, position
        self._sink: Sink | None = None
        self._path = ""

    def write(self, values: npt.NDArray[Any]) -> None:
        """Append values."""
        while len(values):
            path, start, head, room = self._layout.locate(self._position)
            if self._sink is None or path != self._path:
                self.__exit__(None)
                self._sink, self._path = self._out.span(path, start), path
            self._sink.write(head)
            self._sink.write(np.ascontiguousarray(values[:room], self._layout.dtype))
            self._position += len(values[:room])
            values = values[room:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *why: object) -> None:
        """End the last span."""
        if self._sink is not None:
            self._sink.__exit__(*why)


def cut_between_documents(
    documents: Iterable[Documents], most: int, *, extra: int = 0
) -> Iterator[tuple[int, Ids, Ints]]:
    """Cut a stream between documents into files; a document that is larger has a file of its own.

    At most 10 ids per file, documents of 4, 5, 12 and 3 ids: files of 4 + 5, 12, 3.

    Args:
        documents: in order.
        most: ids of a file.
        extra: what a document takes besides its ids, in ids.

    Yields:
        The number of a file, and ids and lengths of documents that are next in it.
    """
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
