"""Cutting a stream of documents into files that hold whole documents.

at most 10 ids a file, documents of 4, 5, 12 and 3 ids: files of 4 + 5, 12, 3
"""

from collections.abc import Iterator

import numpy as np

from streaming_ext.base.arrays import Ints
from tasks.core.reading.documents import Documents, Ids


class WholeFiles:
    """Says which documents go together; one that is larger than a file is alone in one.

    Args:
        most: ids of a file.
        beside: what a document takes beside its ids, in ids.

    Attributes:
        most: see above.
    """

    def __init__(self, most: int, *, beside: int = 0) -> None:
        self.most, self._beside, self._held = most, beside, 0

    def cut(self, documents: Documents) -> Iterator[tuple[bool, Ids, Ints]]:
        """Yields documents that go into one file: whether it is a new one, ids, lengths."""
        ends, first, begin = documents.ends, 0, 0
        filled = ends + self._beside * np.arange(1, len(ends) + 1)
        while first < len(ends):
            before = begin + self._beside * first
            last = int(np.searchsorted(filled, before + self.most - self._held, side="right"))
            if last <= first and self._held:  # the next document needs a file of its own
                self._held = 0
                continue
            last = max(last, first + 1)
            end = int(ends[last - 1])
            begins = not self._held
            self._held += int(filled[last - 1]) - before
            yield begins, documents.stream[begin:end], np.diff(ends[first:last], prepend=begin)
            first, begin = last, end
