"""Chosen documents of a split, whose tokens are a stream of their own.

A file in the cache holds the token ranges of consecutive chosen documents. It is made once per
machine and mapped, so that the processes of the machine share its memory:

words      int64 (ranges + 1, 2): the chosen tokens before each range, and the first token of the
           range in the split's stream; last the number of chosen tokens, and the end of the stream
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
        tokens: the number of tokens in the chosen documents.
        digest: the hash of the choice.
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
        """Find chosen tokens in the split's stream by their numbers: (tokens,)."""
        number = np.searchsorted(self._before, tokens, side="right") - 1
        offsets: Ints = self._starts[number] + tokens - self._before[number]
        return offsets

    def segments(self, starts: Ints, length: int) -> Sequence[Ints]:
        """Find rows of chosen tokens in the split's stream.

        Args:
            starts: the number of each row's first token among the chosen ones: (rows,).
            length: tokens per row.

        Returns:
            the first segment of each row, then the number of segments: (rows + 1,); the first token
            of each segment, and its tokens: (segments,) each.
        """
        first = np.searchsorted(self._before, starts, side="right") - 1
        counts = np.searchsorted(self._before, starts + length) - first
        number, begins = ranges(first, counts), np.repeat(starts, counts)
        before = self._before[number]
        inside = np.maximum(begins - before, 0)
        lengths = np.minimum(self._before[number + 1], begins + length) - before - inside
        return np.append(0, np.cumsum(counts)), self._starts[number] + inside, lengths

    def numbered(self, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
        """Find the chosen ones of some documents, and number their tokens among the chosen tokens.

        Args:
            starts: the first token of each document in the split's stream: (documents,).
            lengths: the tokens of each document: (documents,).

        Returns:
            the number of the first token of each chosen document, and its tokens: (chosen,) each.
        """
        first = self.before(starts)
        chosen = self.before(starts + 1) > first
        return first[chosen], lengths[chosen]
