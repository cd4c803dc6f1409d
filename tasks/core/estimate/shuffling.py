"""What a second stage adds to a run: runs that are written and read again. Arithmetic only."""

from collections.abc import Sequence
from math import ceil

import numpy as np

from streaming_ext.dataset.deduplicated.digests import BYTES_A_ROW
from streaming_ext.dataset.shuffled.keys import num_parts
from streaming_ext.dataset.spec import DatasetSpec
from tasks.core.deduplicate.compare import RANGE_BYTES
from tasks.core.deduplicate.digest_runs import ENTRY_BYTES
from tasks.core.deduplicate.kept_order import DOCUMENT_BYTES as IN_ORDER_DOCUMENT_BYTES
from tasks.core.estimate.cost import SecondStage
from tasks.core.shuffle.run_writer import DOCUMENT_BYTES, RUN_BYTES


def second_stage(
    parts: Sequence[int], tokens: float, documents: float, spec: DatasetSpec, *, remote: bool
) -> SecondStage | None:
    """What the second stage has to do, before copies are left out; None where there is none.

    Args:
        parts: sizes of the parts that the source files become.
        tokens: of all documents, end-of-text ids counted.
        documents: how many.
        spec: of the dataset.
        remote: the output is an object store, where a part's runs are merged into one.
    """
    if not spec.two_stages:
        return None
    id_bytes = tokens * np.dtype(spec.dtype).itemsize
    shuffled = spec.shuffle is not None
    a_document = DOCUMENT_BYTES if shuffled else IN_ORDER_DOCUMENT_BYTES
    runs, after = len(parts), len(parts)
    if shuffled:
        each = np.array(parts) * ((id_bytes + a_document * documents) / max(sum(parts), 1))
        runs = len(parts) if remote else int(np.ceil(each / RUN_BYTES).sum())
        after = num_parts(round(id_bytes), spec.shard_size)
    digests = documents * ENTRY_BYTES if spec.deduplicate is not None else 0.0
    return SecondStage(
        bytes=id_bytes + a_document * documents,
        runs=runs,
        parts=after,
        shuffled=shuffled,
        digests=digests,
        ranges=ceil(digests / RANGE_BYTES),
        merged=remote and shuffled,
        kept=documents * BYTES_A_ROW if digests else 0.0,
    )
