"""The ends of documents in shards, and the boundaries of documents in the rows of a batch.

A document ends in one end-of-text id; an end-of-text id after another one is padding. There are few
boundaries, so they are found for the rows of many steps at once.
"""

import threading
from typing import Final, NamedTuple

import numpy as np

from streaming_ext.base.arrays import Flags, Ints, Small, Tokens, ranges

IGNORED: Final = -100  # the target that torch's cross entropy ignores
_SCANNED: Final = 1 << 18  # tokens searched at once: they fit the cache of one core


class Boundaries(NamedTuple):
    """The boundaries of documents and padding in the rows of several steps, laid end to end.

    A segment is the part of one document, or of padding, in one row.

    Attributes:
        edges: the first offset of every segment, then the end: (segments + 1,).
        ignored: offsets without a target, besides the last of each row: (ignored,).
        last_targets: the target of the last token of each row, if targets are wanted: (rows,).
    """

    edges: Small
    ignored: Ints
    last_targets: Ints


class Ends(NamedTuple):
    """Ends of documents: all arrays of shape (ends,).

    Attributes:
        offsets: the offsets of the end-of-text ids.
        padding: True for padding: an end directly after another one in the same shard.
        followed: True for ends before padding.
    """

    offsets: Ints
    padding: Flags
    followed: Flags


class DocumentEnds:
    """The ends of documents in all shards opened so far, including those closed since.

    Tokens are numbered across shards, in the order in which the shards were added. An end is one
    word: four times the number of its token, plus two if it is padding, plus one if the next token
    is padding. So the array of all words is sorted, and one search finds many ends.
    """

    def __init__(self, shards: int, eot_id: int) -> None:
        """Start without ends.

        Args:
            shards: the number of shards that can be added.
            eot_id: the id that ends a document.
        """
        self._eot = eot_id
        self._guard = threading.Lock()
        self._origins: Ints = np.full(shards, -1)  # the number of each shard's first token
        self._tokens = 0
        self._room: Ints = np.empty(0, np.int64)
        self._words = self._room  # the part of the room that is in use

    def unknown(self, shards: Ints) -> list[int]:
        """Return the shards that were not added yet, each once."""
        unknown: list[int] = np.unique(shards[self._origins[shards] < 0]).tolist()
        return unknown

    def add(self, shard: int, tokens: Tokens) -> None:
        """Find the ends of a shard: (tokens,)."""
        if self._origins[shard] >= 0:
            return
        found = [
            np.flatnonzero(tokens[at : at + _SCANNED] == self._eot) + at
            for at in range(0, len(tokens), _SCANNED)
        ]
        offsets = np.concatenate(found)
        padding = np.diff(offsets, prepend=-2, append=-2) == 1  # the last value belongs to no end
        words = offsets * 4 + padding[:-1] * 2 + padding[1:]
        with self._guard:
            begin, end = len(self._words), len(self._words) + len(words)
            if end > len(self._room):
                self._room = np.empty(2 * end, np.int64)
                self._room[:begin] = self._words
            np.add(words, self._tokens * 4, out=self._room[begin:end])
            self._words = self._room[:end]
            self._origins[shard] = self._tokens
            self._tokens += len(tokens)

    def in_runs(self, shards: Ints, begins: Ints, sizes: Ints) -> Ends:
        """Return the ends in some runs of tokens; offsets count from the first run, end to end.

        Args:
            shards: the shard of each run: (runs,).
            begins: the first token of each run in its shard: (runs,).
            sizes: the tokens of each run: (runs,).
        """
        begins = self._origins[shards] + begins
        words = self._words
        # Searching for sorted numbers is several times faster.
        order = np.argsort(begins)
        begins, sizes, laid = begins[order], sizes[order], (np.cumsum(sizes) - sizes)[order]
        first = np.searchsorted(words, begins * 4)
        counts = np.searchsorted(words, (begins + sizes) * 4) - first
        found = words[ranges(first, counts)]
        return Ends(
            offsets=(found >> 2) + np.repeat(laid - begins, counts),
            padding=found & 2 > 0,
            followed=found & 1 > 0,
        )
