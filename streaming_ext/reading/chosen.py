"""Chosen documents of a split, whose tokens are a stream of their own.

A map in the cache holds the ranges of tokens of consecutive chosen documents, made once on a
machine, so that the processes of a machine share its memory:

words      int64 (ranges + 1, 2): the chosen tokens before each range, and its first token in the
           split's stream; last the number of chosen tokens, and the end of the stream
directory  JSON: the number of chosen documents, the hash of the words
end        length of the directory, 8 bytes; its XXH3-128, 16 bytes

documents of 3, 2 and 5 tokens, the second not chosen: the words are 0 0, 3 5 and 8 10
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from streaming_ext.base.arrays import Ints, ranges
from streaming_ext.reading.made_once import MappedWords

VERSION: Final = 1


class ChosenDocuments(MappedWords):
    """The chosen documents of one split, and their tokens as a stream of its own.

    Attributes:
        documents: the number of chosen documents.
        tokens: their tokens.
        digest: the hash of what is chosen.
    """

    version = VERSION

    def __init__(self, path: Path, *, verify: bool = True) -> None:
        """See `MappedWords`."""
        super().__init__(path, verify=verify)
        self._before, self._starts = self.words.reshape(-1, 2).T  # (ranges + 1,) each
        self.documents: int = self.directory["documents"]
        self.digest: str = self.directory["xxh128"]
        self.tokens = int(self._before[-1])

    def before(self, tokens: Ints) -> Ints:
        """Count the chosen tokens before some tokens of the split's stream: (tokens,)."""
        number = np.maximum(np.searchsorted(self._starts, tokens, side="right") - 1, 0)
        after = self._before[np.minimum(number + 1, len(self._before) - 1)]
        before: Ints = self._before[number] + tokens - self._starts[number]
        return before.clip(0, after)

    def offsets(self, tokens: Ints) -> Ints:
        """Find some chosen tokens in the split's stream, by their numbers: (tokens,)."""
        number = np.searchsorted(self._before, tokens, side="right") - 1
        offsets: Ints = self._starts[number] + tokens - self._before[number]
        return offsets

    def segments(self, starts: Ints, length: int) -> Sequence[Ints]:
        """Find rows of chosen tokens in the split's stream.

        Args:
            starts: the number of each row's first token among the chosen ones: (rows,).
            length: tokens per row.

        Returns:
            first segment of each row, then their number: (rows + 1,); first token and tokens of
            each segment: (segments,).
        """
        first = np.searchsorted(self._before, starts, side="right") - 1
        counts = np.searchsorted(self._before, starts + length) - first
        number, begins = ranges(first, counts), np.repeat(starts, counts)
        before = self._before[number]
        inside = np.maximum(begins - before, 0)
        lengths = np.minimum(self._before[number + 1], begins + length) - before - inside
        return np.append(0, np.cumsum(counts)), self._starts[number] + inside, lengths

    def numbered(self, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
        """Number the tokens of those of some documents that are chosen among the chosen tokens.

        Args:
            starts: first token of each document in the split's stream: (documents,).
            lengths: tokens of each: (documents,).

        Returns:
            the number of the first token of each chosen one, and its tokens: (chosen,) each.
        """
        first = self.before(starts)
        chosen = self.before(starts + 1) > first
        return first[chosen], lengths[chosen]
