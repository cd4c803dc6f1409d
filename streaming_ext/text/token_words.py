"""Hashes of the n-grams of words of documents, computed from their ids.

There are four times as many bytes as ids, so looking at the ids costs little. The bytes of the ids
of a document, one after another, are the bytes of its text. So a word begins in the token in which
it begins in the text. The sum over the tokens between two beginnings is the sum over the characters
between them (see `word_ngrams`).
"""

import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Flags, Ints, Tokens, look_up, ranges
from streaming_ext.text.documents.text_array import taken
from streaming_ext.text.tokenizer.unsafe_texts import FURTHER_TOKENS, code_points_from, parts_of
from streaming_ext.text.word_ngrams import (
    ALONE,
    CODE_POINTS,
    MARK,
    WORD,
    Hashes,
    Sums,
    sums_before,
    tables,
)

# Flags of a token, in this order: a word begins with it, unless an earlier word goes on; a word
# begins in it in any case; its last word may go on; its words are unknown; it holds several words;
# its last character ends in the next tokens; it holds no character but marks.
_GOES_ON, _BEGINS, _IS_OPEN, _UNKNOWN, _SEVERAL, _IS_CUT, _IS_EMPTY = (1 << bit for bit in range(7))
# An entry of a text: its flags, and the sum of its characters in the upper half.
_ENTRY: Final = np.dtype([("flags", "<u4"), ("sum", "<u4")])
_UPPER: Final = np.uint64(32)
_REPLACED: Final = ord("\N{REPLACEMENT CHARACTER}")
_STAND_INS: Final = " a\u4e00\u0301"  # a character of each kind: 0, WORD, ALONE, MARK


@lru_cache(CODE_POINTS)
def is_changed(point: int) -> bool:
    """Return whether NFC may compose a character from others that make other words.

    For most characters, NFC only adds accents to a letter. A Hangul syllable is made of letters.
    """
    kind_of, value_of = tables()
    parts = [ord(each) for each in unicodedata.normalize("NFD", chr(point))]
    letters = [part for part in parts if kind_of[part] != MARK]
    return len(letters) != 1 or value_of[letters[0]] != value_of[point]


def _are_changed(points: Tokens) -> Flags:
    """Return `is_changed` for the characters that are parts of words: (points,)."""
    some = np.unique(points[(points > 0x7F) & (tables()[0][points] > 0)])
    return np.isin(points, [*filter(is_changed, some.tolist())])


class WordSums(NamedTuple):
    """The words of some documents, laid end to end.

    Attributes:
        before: the sum of the characters before each word, and of all: (words + 1,).
        firsts: the position of the id in which each word begins, (words,).
        unknown: the positions of ids whose words are unknown; their documents may hold others.
    """

    before: Sums
    firsts: Ints
    unknown: Ints


class TokenWords:
    """The words that the tokens of a vocabulary begin, hold and end.

    A character may be cut between tokens. It counts for the token in which it begins, and such a
    token has a form for each kind of character:

        tokens          "it" "\\xe2\\x80" "\\x99s"    the cut character is an apostrophe
        in their place  "it" " "        "s"
    """

    def __init__(self, vocabulary: Mapping[int, bytes], *, composes: bool) -> None:
        """Find the words of each token.

        Args:
            vocabulary: the bytes of each id.
            composes: true if the tokenizer normalizes texts with NFC before it encodes them.
        """
        self._composes = composes
        size = max(vocabulary) + 1
        texts = [""] * size  # of each id, then of the forms
        # By id: the bits of the end of a character with which a token begins, and its bytes.
        self._ends, self._end_sizes = np.zeros((2, size), np.int64)
        # By id: the first character that may begin at the end of a token, the bytes that it lacks,
        # and the number of the token's first form.
        self._begins, self._lacks, self._forms = np.zeros((3, size), np.int64)
        for id_, token in vocabulary.items():
            end, whole, begin = parts_of(token)
            texts[id_] = whole.decode(errors="replace")
            for byte in end:
                self._ends[id_] = self._ends[id_] << 6 | byte & 0x3F
            self._end_sizes[id_] = len(end)
            if begin:
                first, after = code_points_from(begin)
                self._begins[id_], self._lacks[id_] = first, (after - first).bit_length() // 6
                self._forms[id_] = len(texts)
                texts += [texts[id_] + stand_in for stand_in in _STAND_INS]
        self._lay_out(texts, is_form=np.arange(len(texts)) >= size)
        held = [id_ for id_, token in vocabulary.items() if token]
        self._entries[np.setdiff1d(np.arange(size), held)] = _UNKNOWN
        self._entries[:size][self._forms > 0] |= np.uint64(_IS_CUT)

    def _lay_out(self, texts: list[str], *, is_form: Flags) -> None:
        """Make the tables of the words of some texts; forms end in a stand-in."""
        lengths = np.array([*map(len, texts)])
        owners = np.repeat(np.arange(len(texts)), lengths)
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
        kind_of, value_of = tables()
        values = value_of[codes].astype(np.uint32)
        values[(np.cumsum(lengths) - 1)[is_form]] = 0  # of the stand-ins
        is_unknown = codes == _REPLACED
        if self._composes:
            is_unknown |= _are_changed(codes)
        flags = np.where(np.bincount(owners, is_unknown, len(texts)), _UNKNOWN, 0)

        is_plain = kind_of[codes] != MARK
        owners, values, kinds = owners[is_plain], values[is_plain], kind_of[codes][is_plain]
        is_first = np.diff(owners, prepend=-1) > 0
        firsts = np.flatnonzero(is_first)
        begins = (kinds > 0) & (
            is_first | (np.diff(kinds, prepend=np.uint8(0)) != 0) | (kinds == ALONE)
        )
        counts = np.bincount(owners, begins, len(texts)).astype(np.int64)
        goes_on = kinds[firsts] == WORD
        filled = owners[firsts]  # the texts with a character that is no mark
        flags |= np.where(np.bincount(filled, minlength=len(texts)), 0, _IS_EMPTY)
        flags[filled] |= _GOES_ON * goes_on + _BEGINS * (~goes_on & (counts[filled] > 0))
        flags[filled] |= _IS_OPEN * (kinds[np.append(firsts[1:], len(kinds)) - 1] == WORD)
        # The flags of each text, and in the upper half the sum of the values of its characters.
        self._entries = (flags | _SEVERAL * (counts > 1)).astype(np.uint64)
        self._entries[filled] |= np.add.reduceat(values, firsts, dtype=np.uint64) << _UPPER
        # The words of a text after its first, and the values of all characters before each.
        before = np.cumsum(values, dtype=np.uint32) - values
        number = np.cumsum(begins) - begins
        first_of = firsts[np.cumsum(is_first) - 1]
        is_later = begins & (number > number[first_of])
        self._later = np.bincount(owners[is_later], minlength=len(texts))
        self._first_later = np.cumsum(self._later) - self._later
        self._before_later = (before - before[first_of])[is_later]

    def sums(self, ids: npt.NDArray[np.uint32], offsets: Ints) -> WordSums:
        """Return the words of some documents.

        Args:
            ids: the ids of all documents.
            offsets: the position of the first id of each document, and the end: (documents + 1,).
        """
        # As `taken`, but into an array that may be changed; "wrap" leaves out the check of the ids.
        found = self._entries.take(ids.astype(np.int64), mode="wrap")
        flags = found.astype(np.uint8)
        special = np.flatnonzero(flags >= _UNKNOWN)
        texts = ids[special].astype(np.int64)
        if len(special):
            self._insert_forms(ids, found, special, texts)
            flags[special] = found[special]
        own = flags[special]
        is_open = np.zeros(len(flags) + 1, np.uint8)
        np.right_shift(flags, 2, out=is_open[1:])  # bit 0: the word in the token before may go on
        is_open[offsets] = 0
        if len(empty := special[own & _IS_EMPTY > 0]):
            begins_run = np.diff(empty, prepend=-2) > 1
            begins_run[look_up(empty, offsets)[1]] = True
            is_open[empty + 1] = is_open[empty[begins_run]][np.cumsum(begins_run) - 1]
            is_open[offsets] = 0
        is_first = (flags & ~is_open[:-1] | flags >> 1) & 1
        at = np.flatnonzero(is_first.view(np.bool_))
        sums = sums_before(found).view(_ENTRY)["sum"]  # flags add up to less than 2^32
        before = sums[at]
        if (is_several := own & _SEVERAL > 0).any():
            several, texts = special[is_several], texts[is_several]
            counts = self._later[texts]
            positions = np.searchsorted(at, several, side="right").repeat(counts)
            later = self._before_later[ranges(self._first_later[texts], counts)]
            before = np.insert(before, positions, sums[several].repeat(counts) + later)
            at = np.insert(at, positions, several.repeat(counts))
        return WordSums(np.append(before, sums[-1]), at, special[own & _UNKNOWN > 0])

    def _insert_forms(
        self, ids: npt.NDArray[np.uint32], found: Hashes, special: Ints, texts: Ints
    ) -> None:
        """Replace the tokens that end in a cut character by their forms for it.

        Args:
            ids: the ids of all documents.
            found: the entries of the tokens, which are replaced: (ids,).
            special: the positions of some ids, of which the cut ones are replaced.
            texts: the numbers of their texts, which are replaced: (special,).
        """
        is_cut = found[special] & _IS_CUT > 0
        at = special[is_cut]
        own, kind_of, value_of = taken(ids, at), *tables()
        points, lacks = taken(self._begins, own), taken(self._lacks, own)
        for step in range(1, FURTHER_TOKENS + 1):
            if not lacks.any():
                break
            following = taken(ids, np.minimum(at + step, len(ids) - 1))
            sizes = np.minimum(taken(self._end_sizes, following), lacks)
            lacks = lacks - sizes
            points = points + (taken(self._ends, following) << 6 * lacks) * (sizes > 0)
        unknown = (lacks > 0) | (points >= CODE_POINTS)
        points[unknown] = 0
        if self._composes:
            unknown |= _are_changed(points)
        kinds = taken(kind_of, points)
        texts[is_cut] = forms = taken(self._forms, own) + kinds
        entries = taken(self._entries, forms) | _UNKNOWN * unknown.astype(np.uint64)
        found[at] = entries + (taken(value_of, points) * (kinds != MARK) << _UPPER)
