"""Lengths of documents for a report: of some parts only where there are many."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.dataset.layout import documents_path
from tasks.core.reporting.length_classes import Lengths
from tasks.core.reporting.report import PartCounts
from tasks.core.storage import Storage

_MOST_DOCUMENTS = 4_000_000  # about a second's reading
_MOST_FILES = 48
_IO_THREADS = 8


def sample_lengths(storage: Storage, parts: Sequence[PartCounts]) -> Lengths:
    """Read the lengths of the documents of parts that stand evenly over all.

    Raises:
        StorageError, FileNotFoundError, ArrowException: the provenance of a part cannot be read.
    """
    chosen = evenly([part.documents for part in parts])
    lengths = Lengths()

    def read(index: int) -> pa.ChunkedArray:
        data = storage.read(documents_path(parts[index].part))
        return pq.read_table(pa.BufferReader(data), columns=["tokens"], use_threads=False)["tokens"]

    with ThreadPoolExecutor(_IO_THREADS) as threads:
        for tokens in threads.map(read, chosen):
            lengths.add(tokens.to_numpy().astype("int64"))
    return lengths


def evenly(documents: Sequence[int]) -> list[int]:
    """As many indexes, evenly spread, as hold together no more documents than are read."""
    count = min(len(documents), _MOST_FILES)
    while count > 1:
        chosen = [index * len(documents) // count for index in range(count)]
        if sum(documents[index] for index in chosen) <= _MOST_DOCUMENTS:
            return chosen
        count -= 1
    return list(range(count))
