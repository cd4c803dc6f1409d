"""The search for copies while a part is tokenized, so that the copies need not be tokenized.

Known texts are the texts of earlier parts that are recorded on the output, and of this part so far.
Phase two leaves out their copies anyway, so the spills hold no ids for these. A copy of a text that
is not known yet, or that does not fit in memory, is tokenized like any other text.
"""

import time
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.arrays import Ints
from streaming_ext.format.shuffled import KEY_BITS, Keys
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.text.text_hashes import text_digests
from streaming_ext.writing.tokenize import MOST_NOTED_TOKENS, NotedTexts
from tasks.core.shuffle.sort import DIGESTS
from tasks.core.shuffle.spills import SpillIndex, read_spill_record

MOST_KNOWN: Final = 2**22  # texts that a worker remembers: 100 MB
_TOKEN_BITS: Final = np.uint64(MOST_NOTED_TOKENS.bit_length())
_MOST_PARTS: Final = 1024  # the nearest earlier ones, to look for texts
_LOOK_SECONDS: Final = 0.5


def finds_copies(spec: DatasetSpec, storage: Storage) -> bool:
    """Return whether a run finds copies while it tokenizes.

    It does not if the output is remote, as that costs requests; nor with a shuffle, as the sizes of
    spills decide how many documents are sorted at a time.
    """
    by_hash = spec.deduplicate not in (None, "near")
    return by_hash and spec.shuffle is None and not storage.remote


class EarlierTexts:
    """The texts of the part that a worker tokenizes, and of earlier parts."""

    def __init__(self, storage: Storage, spec: DatasetSpec, first: int) -> None:
        """Begin without any text.

        Args:
            storage: the storage of the output.
            spec: the specification of the run.
            first: the number of the first part of the run.
        """
        self._storage, self._spec, self._first = storage, spec, first
        self._forget()

    def _forget(self) -> None:
        self._earlier = _TokensByKey()
        self._read: set[int] = set()

    def begin(self, part: int) -> None:
        """Begin a part, of which no text is known yet."""
        if any(number >= part for number in self._read):
            self._forget()
        self._part = _TokensByKey()
        self._before = range(max(self._first, part - _MOST_PARTS), part)
        self._looked = -_LOOK_SECONDS

    def look(self, texts: pa.LargeStringArray, digests: Keys) -> NotedTexts:
        """Look up the texts of a batch.

        Args:
            texts: the texts, as in the source.
            digests: the hashes of their compared form, (texts, 2).

        Raises:
            StorageError: the output cannot be read.
            CorruptDatasetError: a record or a spill is damaged.
        """
        self._read_more()
        own = np.zeros(len(digests), np.uint64)
        if self._spec.deduplicate != "exact":  # texts with the same hash may differ
            own = _without_tokens(text_digests(texts)[:, 0])
        keys = np.stack([digests[:, 0] ^ own, digests[:, 1]], axis=1)
        tokens = self._earlier.tokens_of(keys)
        return NotedTexts(keys, own, np.maximum(tokens, self._part.tokens_of(keys)))

    def add(self, noted: NotedTexts, lengths: Ints, kept: npt.NDArray[np.bool_]) -> None:
        """Remember the new texts of a batch that are kept."""
        chosen = noted.new & kept
        self._part.add(noted.keys[chosen], lengths[chosen])

    def _read_more(self) -> None:
        """Read the hashes of earlier parts that were recorded meanwhile."""
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        for part in self._before:
            if part in self._read or self._earlier.full:
                continue
            try:
                record = read_spill_record(self._storage, part)
            except FileNotFoundError:
                continue
            found = SpillIndex.of(record.digests).read(self._storage, 0, 2**KEY_BITS, DIGESTS)
            high, low, notes = (found[name].to_numpy() for name in ("high", "low", "key"))
            keys = np.stack([high ^ _without_tokens(notes), low], axis=1)
            self._earlier.add(keys, (notes ^ _without_tokens(notes)).astype(np.int64))
            self._read.add(part)
        self._looked = time.monotonic()


def _without_tokens(notes: Keys) -> Keys:
    return notes >> _TOKEN_BITS << _TOKEN_BITS


class _TokensByKey:
    """The token counts of texts by key, in sorted chunks, each at most half as long as the last."""

    def __init__(self) -> None:
        self._chunks: list[tuple[Keys, Ints]] = []

    @property
    def full(self) -> bool:
        """True if no more texts are remembered."""
        return sum(len(tokens) for _, tokens in self._chunks) >= MOST_KNOWN

    def add(self, keys: Keys, tokens: Ints) -> None:
        """Remember texts; `keys`: (texts, 2), `tokens`: (texts,)."""
        fit = (tokens > 0) & (tokens < MOST_NOTED_TOKENS)  # others cannot be noted
        if self.full or not fit.any():
            return
        keys, tokens = keys[fit], tokens[fit]
        while self._chunks and len(self._chunks[-1][1]) < 2 * len(tokens):
            more_keys, more = self._chunks.pop()
            keys, tokens = np.concatenate([more_keys, keys]), np.concatenate([more, tokens])
        order = np.argsort(keys[:, 0])
        self._chunks.append((keys[order], tokens[order]))

    def tokens_of(self, keys: Keys) -> Ints:
        """Return the tokens of each text, -1 if it is not known: (texts,)."""
        found = np.full(len(keys), -1, np.int64)
        order = np.argsort(keys[:, 0])  # sorted look-ups access memory in order
        wanted = keys[order]
        for own, tokens in self._chunks:
            at = np.minimum(np.searchsorted(own[:, 0], wanted[:, 0]), len(tokens) - 1)
            same = (own[at] == wanted).all(axis=1)
            found[order[same]] = tokens[at[same]]
        return found
