"""Ids of documents that lie one after another, taken in another order at the speed of memory."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.dataset.shuffled.keys import Ints


class IdsByDocument:
    """The ids of some documents, an end-of-text id behind each."""

    def __init__(self, ids: npt.NDArray[Any], lengths: npt.NDArray[np.integer[Any]]) -> None:
        """Look at ids where they lie.

        Args:
            ids: (tokens,).
            lengths: tokens of each document, without end-of-text ids, (documents,).
        """
        # ends: (documents + 1,), where each document begins in the ids, in bytes
        ends = np.concatenate([[0], np.cumsum(lengths.astype(np.int64) + 1)]) * ids.dtype.itemsize
        self.nbytes = int(ends[-1])
        self._texts = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(ids)]
        )

    def take(self, documents: Ints) -> pa.Buffer:
        """The bytes of the ids of some documents, in the order in which they are named."""
        return self._texts.take(pa.array(documents)).buffers()[2]
