"""The lengths of documents: the number of documents of each length."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.base.arrays import Ints
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.layout import documents_path
from streaming_ext.store import Storage
from tasks.core.reporting.report import ReportedCounts

_MOST_DOCUMENTS: Final = 4_000_000  # in a sample; reading them takes about a second
_MOST_FILES: Final = 48


class Lengths:
    """Counts of documents by their tokens, without end-of-text ids."""

    def __init__(self) -> None:
        self._lengths = self._counts = np.empty(0, np.int64)

    def add(self, tokens: Ints) -> None:
        """Count documents; `tokens`: (documents,)."""
        self._add(*np.unique(tokens, return_counts=True))

    def include(self, others: "Lengths") -> None:
        """Add the counts of `others`."""
        self._add(others._lengths, others._counts)

    def _add(self, lengths: Ints, counts: Ints) -> None:
        self._lengths, index = np.unique(np.append(self._lengths, lengths), return_inverse=True)
        counts = np.append(self._counts, counts)
        self._counts = np.bincount(index, counts, len(self._lengths)).astype(np.int64)

    @property
    def documents(self) -> int:
        """The number of documents."""
        return int(self._counts.sum())

    @property
    def tokens(self) -> int:
        """The tokens of all documents."""
        return int(self._lengths @ self._counts)

    @property
    def longest(self) -> int:
        """The tokens of the longest document."""
        return int(self._lengths.max(initial=0))

    @property
    def mean(self) -> float:
        """The mean tokens per document."""
        return self.tokens / self.documents if self.documents else 0.0

    def quantile(self, fraction: float) -> int:
        """Return the length that `fraction` of the documents do not exceed."""
        if not self.documents:
            return 0
        rank = max(int(np.ceil(fraction * self.documents)), 1)
        return int(self._lengths[np.searchsorted(np.cumsum(self._counts), rank)])

    def figures(self) -> dict[str, float]:
        """Return the mean, some quantiles and the greatest length, by name."""
        quantiles = {f"p{percent}": self.quantile(percent / 100) for percent in (50, 90, 99)}
        return {"mean": self.mean, **quantiles, "longest": self.longest}

    def histogram(self, steps: int = 1) -> list[tuple[int, int, int]]:
        """Return (lower bound, upper bound, number of documents between them), ascending.

        A class without documents is listed if it lies between classes that have some.

        Args:
            steps: the classes per doubling of the length; fewer for the shortest, as lengths are
                integers.
        """
        bounds = sorted({round(2 ** (step / steps)) for step in range(60 * steps)})
        counts = np.histogram(self._lengths, bounds, weights=self._counts)[0].astype(int).tolist()
        filled = np.flatnonzero(counts)
        found = list(zip(bounds, bounds[1:], counts, strict=False))
        return found[filled[0] : filled[-1] + 1] if len(filled) else []


def sample_lengths(storage: Storage, parts: Sequence[ReportedCounts]) -> Lengths:
    """Read the lengths of the documents in a sample of parts, evenly spread over all.

    Raises:
        StorageError, FileNotFoundError, ArrowException: the documents of a part cannot be read.
    """
    lengths = Lengths()

    def read(index: int) -> pa.ChunkedArray:
        data = storage.read(documents_path(parts[index].part))
        return pq.read_table(pa.BufferReader(data), columns=["tokens"], use_threads=False)["tokens"]

    for tokens in mapped_ahead(read, evenly([part.documents for part in parts])):
        lengths.add(tokens.to_numpy().astype("int64"))
    return lengths


def evenly(documents: Sequence[int]) -> list[int]:
    """Return as many evenly spread indexes as the limits of a sample allow."""
    for count in range(min(len(documents), _MOST_FILES), 1, -1):
        chosen = [index * len(documents) // count for index in range(count)]
        if sum(documents[index] for index in chosen) <= _MOST_DOCUMENTS:
            return chosen
    return [0] if documents else []
