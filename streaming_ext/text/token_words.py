"""Hashes of the n-grams of words of documents, computed from their ids.

There are four times as many bytes as ids, so looking at the ids costs little. The bytes of the ids
of a document, one after another, are the bytes of its text. So a word begins in the token in which
it begins in the text. The sum over the tokens between two beginnings is the sum over the characters
between them (see `word_ngrams`).
"""

import unicodedata
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints, ranges
from streaming_ext.text.documents.text_array import taken
from streaming_ext.text.tokenizer.unsafe_texts import code_points_from, parts_of
from streaming_ext.text.word_ngrams import ALONE, MARK, WORD, Sums, sums_before, tables

# Flags of a token, in this order: a word begins with it, unless an earlier word goes on; a word
# begins in it in any case; its last word may go on; its words are unknown; it holds several words.
_GOES_ON, _BEGINS, _IS_OPEN, _UNKNOWN, _SEVERAL = 1, 2, 4, 8, 16
_UNKNOWN_TEXT: Final = "\N{REPLACEMENT CHARACTER}"


def _text_of(token: bytes) -> str:
    """Return the text of a token, with U+FFFD if the token alone does not say which words it holds.

    The end of a character counts as a space: the token that begins the character says if its word
    is known.
    """
    rest, whole, begin = parts_of(token)
    first, end = code_points_from(begin) if begin else (0, 0)
    last = _UNKNOWN_TEXT if tables()[0][first:end].any() else " "
    return " " * bool(rest) + whole.decode(errors="replace") + last * bool(begin)


def is_changed(point: int) -> bool:
    """Return whether NFC may compose a character from others that make other words.

    For most characters, NFC only adds accents to a letter. A Hangul syllable is made of letters.
    """
    kind_of, value_of = tables()
    parts = [ord(each) for each in unicodedata.normalize("NFD", chr(point))]
    letters = [part for part in parts if kind_of[part] != MARK]
    return len(letters) != 1 or value_of[letters[0]] != value_of[point]


class WordSums(NamedTuple):
    """The words of some documents, laid end to end.

    Attributes:
        before: the sum of the characters before each word, and of all: (words + 1,).
        firsts: the position of the id in which each word begins, (words,).
    """

    before: Sums
    firsts: Ints


class TokenWords:
    """The words that the tokens of a vocabulary begin, hold and end.

    A token with several words, such as ` it's`, is treated as several tokens: ` it'` and `s`.
    """

    def __init__(self, vocabulary: Mapping[int, bytes], *, composes: bool) -> None:
        """Find the words of each token.

        Args:
            vocabulary: the bytes of each id.
            composes: true if the tokenizer normalizes texts with NFC before it encodes them.
        """
        known = {id_: token for id_, token in vocabulary.items() if token}
        texts = [*map(_text_of, known.values())]
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
        lengths = np.array([*map(len, texts)])
        firsts = np.cumsum(lengths) - lengths
        kind_of, value_of = tables()
        kinds = kind_of[codes]
        unknown = (codes == ord(_UNKNOWN_TEXT)) | (kinds == MARK)
        if composes:
            points = np.unique(codes[(codes > 0x7F) & (kinds > 0)])
            unknown |= np.isin(codes, [*filter(is_changed, points.tolist())])

        is_first = np.zeros(len(codes), np.bool_)
        is_first[firsts] = True
        begins = (kinds > 0) & (
            is_first | (kinds != np.append(np.uint8(0), kinds[:-1])) | (kinds == ALONE)
        )
        before = np.cumsum(begins) - begins
        # Cut before each word of a token but its first.
        is_cut = begins & (before > np.repeat(before[firsts], lengths))
        cuts = np.flatnonzero(is_first | is_cut)
        goes_on = is_first & (kinds == WORD)
        unknown = np.repeat(np.logical_or.reduceat(unknown, firsts), lengths)
        flags = np.bitwise_or.reduceat(
            _GOES_ON * goes_on + _BEGINS * (begins & ~goes_on) + _UNKNOWN * unknown, cuts
        )
        ends = np.append(cuts[1:], len(codes)) - 1
        flags |= _IS_OPEN * (kinds[ends] == WORD)

        # flags and values: (cuts + 1,) each; the last is for ids that the vocabulary lacks
        self._flags = np.append(flags, _UNKNOWN).astype(np.uint8)
        self._values = np.append(np.add.reduceat(value_of[codes], cuts).astype(np.uint32), 0)
        counts = np.diff(np.append(np.searchsorted(cuts, firsts), len(cuts)))
        ids, size = np.array([*known], np.int64), max(vocabulary) + 1
        self._counts, self._firsts = np.ones(size, np.int64), np.full(size, len(cuts))
        self._counts[ids], self._firsts[ids] = counts, np.cumsum(counts) - counts
        # These tables by id serve texts without tokens of several words.
        self._flags_of_id = self._flags[self._firsts] | np.uint8(_SEVERAL) * (self._counts > 1)
        self._values_of_id = self._values[self._firsts]

    def flags(self, ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        """Return flags that describe the words of each id, for the other methods: (ids,)."""
        return taken(self._flags_of_id, ids)

    @staticmethod
    def unknown(flags: npt.NDArray[np.uint8]) -> Ints:
        """Return the positions of the ids whose words are unknown."""
        return np.flatnonzero((flags & _UNKNOWN).astype(np.bool_))

    def sums(
        self, ids: npt.NDArray[np.uint32], flags: npt.NDArray[np.uint8], offsets: Ints
    ) -> WordSums:
        """Return the words of some documents.

        Args:
            ids: the ids of all documents.
            flags: their flags, as `flags` returns them.
            offsets: the position of the first id of each document, and the end: (documents + 1,).
        """
        owners = None
        if flags.max(initial=0) >= _SEVERAL:
            counts = taken(self._counts, ids)
            owners = np.repeat(np.arange(len(ids)), counts)
            cuts = ranges(taken(self._firsts, ids), counts)
            flags, values = taken(self._flags, cuts), taken(self._values, cuts)
            offsets = np.append(0, np.cumsum(counts))[offsets]
        else:
            values = taken(self._values_of_id, ids)
        is_open = np.zeros(len(flags) + 1, np.uint8)
        np.right_shift(flags, 2, out=is_open[1:])  # bit 0: the word in the token before may go on
        is_open[offsets] = 0
        is_first = (flags & ~is_open[:-1] | flags >> 1) & 1
        at = np.flatnonzero(is_first.view(np.bool_))
        before = sums_before(values)
        return WordSums(np.append(before[at], before[-1]), at if owners is None else owners[at])
