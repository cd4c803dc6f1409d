"""How long documents are: counted into a table of bounded size, whatever their number."""

import numpy as np
import numpy.typing as npt

_EXACT = 2**16  # lengths below are counted one by one
_STEPS = 256  # above, so many classes to each doubling: within 0.3 %
_DOUBLINGS = 48


class Lengths:
    """Tokens a document, end-of-text ids left out.

    Attributes:
        documents, tokens, longest: of all that were added; exact.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_EXACT + _STEPS * _DOUBLINGS, np.int64)
        self.documents = self.tokens = self.longest = 0

    def add(self, tokens: npt.NDArray[np.int64]) -> None:
        """Count documents; `tokens` is of shape (documents,)."""
        if not len(tokens):
            return
        self.documents += len(tokens)
        self.tokens += int(tokens.sum())
        self.longest = max(self.longest, int(tokens.max()))
        classes = np.minimum(tokens, _EXACT - 1)
        long = tokens >= _EXACT
        classes[long] = _EXACT + (np.log2(tokens[long] / _EXACT) * _STEPS).astype(np.int64)
        self._counts += np.bincount(classes, minlength=len(self._counts))

    def include(self, others: "Lengths") -> None:
        """Add what was counted elsewhere."""
        self._counts += others._counts
        self.documents += others.documents
        self.tokens += others.tokens
        self.longest = max(self.longest, others.longest)

    @property
    def mean(self) -> float:
        """Tokens a document."""
        return self.tokens / self.documents if self.documents else 0.0

    def quantile(self, share: float) -> int:
        """The length that `share` of the documents do not exceed; exact below 65,536 tokens."""
        if not self.documents:
            return 0
        rank = max(int(np.ceil(share * self.documents)), 1)
        index = int(np.searchsorted(np.cumsum(self._counts), rank))
        if index < _EXACT:
            return index
        return min(int(_EXACT * 2 ** ((index - _EXACT + 1) / _STEPS)), self.longest)

    def doublings(self) -> list[tuple[int, int]]:
        """(length, documents from that length up to its double), from the shortest to the longest.

        Doublings without a document are there too where they stand between others.
        """
        return [(start, documents) for start, _, documents in self.histogram(1)]

    def histogram(self, steps: int) -> list[tuple[int, int, int]]:
        """(length, next length, documents from the one up to the other), as `doublings`.

        Args:
            steps: classes to each doubling, a power of two up to 256; among the shortest lengths
                there are fewer, since lengths are whole.
        """
        bounds = sorted({round(2 ** (step / steps)) for step in range(16 * steps)})
        above = range(_DOUBLINGS * steps + 1)
        classes = [*bounds, *(_EXACT + _STEPS // steps * step for step in above)]
        lengths = [*bounds, *(round(_EXACT * 2 ** (step / steps)) for step in above)]
        ends = np.concatenate(([0], np.cumsum(self._counts)))
        counts = np.diff(ends[classes])
        there = np.flatnonzero(counts)
        if not len(there):
            return []
        return [
            (lengths[i], lengths[i + 1], int(counts[i])) for i in range(there[0], there[-1] + 1)
        ]
