"""The runs of one part merged into one on scratch.

Each part of the second stage reads a range of each run. Where that is a request to a store, a part
of 10 GiB that becomes one run, not thirty, asks for a thirtieth of them.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from streaming_ext.dataset.shuffled.keys import KEY_BITS
from streaming_ext.dataset.spec import DatasetSpec
from tasks.core.shuffle.kept_in_runs import packed
from tasks.core.shuffle.range_documents import documents_of_range
from tasks.core.shuffle.run_index import RunIndex
from tasks.core.shuffle.run_record import Run, run_path
from tasks.core.shuffle.run_writer import RunFile, block_bits, block_starts
from tasks.core.storage import LocalStorage

_STEP_BYTES: Final = 2**26  # of runs that are merged at a time


def merged(folder: Path, part: int, spec: DatasetSpec, runs: Sequence[Run]) -> Run:
    """Put one run in the place of several; memory does not depend on their size.

    Args:
        folder: that holds them, on scratch.
        part: whose they are.
        spec: of the dataset.
        runs: each of documents that follow those of the one before.
    """
    size = sum(run.file.size for run in runs)
    bits = block_bits(size)
    at_once = max(1, _STEP_BYTES * 2**bits // size)
    scratch = LocalStorage(folder)
    index = _index(part, runs)
    incoming = run_path(part, len(runs))
    with RunFile(folder, incoming, 2**bits) as out:
        for first in range(0, 2**bits, at_once):
            last = min(first + at_once, 2**bits)
            shift = KEY_BITS - bits
            found = documents_of_range(scratch, index, first << shift, last << shift, spec)
            order = found.order
            # firsts: (blocks + 1,), the first document of each block
            firsts = np.searchsorted(found.keys[order], block_starts(bits)[first:last])
            edges = [*firsts.tolist(), len(order)]
            for begin, end in pairwise(edges):
                own = order[begin:end]
                data = b"".join(
                    column[own].astype(kind).tobytes()
                    for column, kind in (
                        (found.keys, "<u8"),
                        (found.rows, "<i8"),
                        (found.places, "<i8"),
                        (found.lengths, "<u4"),
                        (found.sizes, "<u4"),
                        (found.in_holdout, "u1"),
                    )
                )
                if len(own):
                    data += found.ids.take(own, int((found.lengths[own] + 1).sum())).tobytes()
                    taken = pa.array(own)
                    values = [column.take(taken) for column in found.values]
                    data += packed(spec.keep_columns, values)
                out.add(data, len(own))
    for run in runs:
        (folder / run.file.path).unlink()
    (folder / incoming).rename(folder / run_path(part, 0))
    return out.told.at(run_path(part, 0))


def _index(part: int, runs: Sequence[Run]) -> RunIndex:
    """An index in which rows stay those of the part."""
    none = np.zeros(1, np.int64)
    return RunIndex.of_runs(
        [(part, runs)],
        piece_firsts=np.append(np.zeros(part + 1, np.int64), 1),
        piece_rows=none,
        piece_sources=none,
        piece_before=none,
    )
