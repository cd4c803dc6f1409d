"""What a shuffle adds to a run: runs that are written and read again. Arithmetic only."""

from collections.abc import Sequence

import numpy as np

from streaming_ext.dataset.shuffled.keys import num_parts
from streaming_ext.dataset.spec import DatasetSpec
from tasks.core.estimate.cost import ShuffleWork
from tasks.core.shuffle.run_writer import DOCUMENT_BYTES, RUN_BYTES


def shuffle_work(
    parts: Sequence[int], tokens: float, documents: float, spec: DatasetSpec
) -> ShuffleWork | None:
    """What the second stage has to do; None where there is none.

    Args:
        parts: sizes of the parts that the source files become.
        tokens: of all documents, end-of-text ids counted.
        documents: how many.
        spec: of the dataset.
    """
    if spec.shuffle is None:
        return None
    id_bytes = tokens * np.dtype(spec.dtype).itemsize
    size = id_bytes + DOCUMENT_BYTES * documents
    each = np.array(parts) * (size / max(sum(parts), 1))
    return ShuffleWork(
        bytes=size,
        runs=int(np.ceil(each / RUN_BYTES).sum()),
        parts=num_parts(round(id_bytes), spec.shard_size),
    )
