"""A stream of ids, cut into files between documents."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from streaming_ext.base.arrays import Ints
from tasks.core.reading.documents import DocumentBlock, Ids

Dtype = np.dtype[Any]
Block = tuple[int, Ids, Ints]  # file number; ids and lengths of its documents


def cut_between_documents(
    documents: Iterable[DocumentBlock], most: int, *, extra: int = 0
) -> Iterator[tuple[int, Iterator[Block]]]:
    """Cut a stream into files between documents; a document that is too large gets its own file.

    With at most 10 ids per file, documents of 4, 5, 12 and 3 ids give files of 4 + 5, 12 and 3.

    Args:
        documents: the documents in order.
        most: the most ids per file.
        extra: the room that a document takes besides its ids, in ids.

    Yields:
        The number of a file, and its blocks.
    """
    return groupby(_blocks(documents, most, extra), itemgetter(0))


def _blocks(documents: Iterable[DocumentBlock], most: int, extra: int) -> Iterator[Block]:
    number, held = -1, most + 1
    for block in documents:
        # filled: (documents,), the room taken up to the end of each document
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
