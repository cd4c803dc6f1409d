"""Hashes of the n-grams of words of texts, computed for whole batches at once.

A word is a run of letters and digits; everything else separates words. Characters are compared
without case, width and accents: `Café`, `CAFÉ` and `cafe` are one word. In scripts that put no
spaces between words each character is a word.

A word of the characters c0 c1 c2 has the hash v(c0) + v(c1)·B + v(c2)·B² mod 2^64, with a random
number v for each character. The hash of an n-gram combines the hashes of its words in the same way.

The plain sum of v over all characters of an n-gram is another hash, which ignores their order.
`token_words` computes its lower half from the ids of a text, at a fifth of the cost.
"""

import unicodedata
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from streaming_ext.base.arrays import Flags, Ints, scrambled
from streaming_ext.text.documents.text_array import cut_by_bytes, taken, text_buffers

Hashes = npt.NDArray[np.uint64]
Sums = npt.NDArray[np.uint32]

SEGMENT: Final = 2**17  # bytes that are processed together; a longer text is cut between words
_BLOCK: Final = 2**14  # words that are processed together
_LOOK: Final = 2**12  # bytes that are searched for a place to cut
_BASE: Final = 0x9E3779B97F4A7C15  # odd, so that it has an inverse mod 2^64
_NEXT: Final = np.uint64(0xD6E8FEB86659FD93)  # the base for the words of an n-gram
CODE_POINTS: Final = 0x110000
WORD, ALONE, MARK = 1, 2, 3  # kinds of characters; 0 separates words
# Ranges of one kind in which each character is its own form: none folds, composes or is white
# space. `text_hashes` relies on this too.
UNIFORM: Final = (
    (0x3400, 0x4DC0, ALONE),
    (0x4E00, 0xA000, ALONE),
    (0xAC00, 0xD7A4, WORD),
    (0xD800, 0xF900, 0),
    (0x20000, 0x2F800, ALONE),
    (0x2FA20, CODE_POINTS, 0),
)
# Thai, Lao, Tibetan, Myanmar, Khmer; kana; ideographs for compatibility.
_WITHOUT_SPACES: Final = (
    (0x0E00, 0x10A0),
    (0x1780, 0x1800),
    (0x3040, 0x3100),
    (0xF900, 0xFB00),
    (0x2F800, 0x2FA20),
)


class Ngrams(NamedTuple):
    """The n-grams of some texts, in their order: (n-grams,) each.

    Attributes:
        hashes: the hash of each n-gram.
        texts: the index of its text.
    """

    hashes: Hashes
    texts: Ints


def word_ngrams(texts: pa.LargeStringArray, words: int) -> Ngrams:
    """Return the n-grams of each text; a text with fewer words has none.

    Args:
        texts: the texts, without nulls.
        words: the number of words of an n-gram.
    """
    hashes, owners = words_of(texts, ordered=True)
    is_inside = are_inside(owners, words)
    starts = len(is_inside)
    sums = [
        scrambled(_sums(hashes[at : min(at + _BLOCK, starts) + words - 1], words))
        for at in range(0, starts, _BLOCK)
    ]
    return Ngrams(np.concatenate([hashes[:0], *sums])[is_inside], owners[:starts][is_inside])


def words_of(texts: pa.LargeStringArray, *, ordered: bool) -> Ngrams:
    """Return the words of each text, as n-grams of one word.

    Args:
        texts: the texts, without nulls.
        ordered: true for hashes that depend on the order of characters, false for plain sums.
    """
    segments, owners = _segments(texts)
    found = [(np.empty(0, np.uint64), np.empty(0, np.int64))] + [
        _words(segments[start:end], start, ordered=ordered)
        for start, end in cut_by_bytes(segments, SEGMENT)
    ]
    hashes, of_segment = (np.concatenate(column) for column in zip(*found, strict=True))
    return Ngrams(hashes, owners[of_segment])


def are_inside(owners: Ints, words: int) -> Flags:
    """Flag the n-grams of consecutive words that lie in one text: (n-grams,).

    Args:
        owners: the index of the text of each word, (words,).
        words: the number of words of an n-gram.
    """
    count = max(len(owners) - words + 1, 0)
    flags: Flags = owners[:count] == owners[len(owners) - count :]
    return flags


def sums_before(values: Sums | Hashes) -> npt.NDArray[Any]:
    """Return the sum before each value, and of all: sums_before([1, 2, 5]) is [0, 1, 3, 8]."""
    before = np.zeros(len(values) + 1, values.dtype)
    np.cumsum(values, dtype=values.dtype, out=before[1:])
    return before


def _segments(texts: pa.LargeStringArray) -> tuple[pa.LargeStringArray, Ints]:
    """Cut long texts between words, if possible; return the segments, and their texts."""
    data, offsets = text_buffers(texts)
    numbers = np.arange(len(texts))
    long = np.flatnonzero(np.diff(offsets) > SEGMENT).tolist()
    if not long:
        return texts, numbers
    cuts = []
    for number in long:
        at, end = int(offsets[number]) + SEGMENT, int(offsets[number + 1])
        while at < end:
            # ASCII before "0" is white space and punctuation.
            between = np.flatnonzero(data[at : min(at + _LOOK, end)] < ord("0"))
            at += int(between[0]) if len(between) else 0
            while at < end and data[at] & 0xC0 == 0x80:
                at += 1
            cuts.append((number, at))
            at += SEGMENT
    owners, edges = (np.array(column) for column in zip(*cuts, strict=True))
    edges = np.insert(offsets, owners + 1, edges)
    numbers = np.sort(np.append(numbers, owners))
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
    return pa.LargeStringArray.from_buffers(len(numbers), buffers[1], buffers[2]), numbers


def _words(texts: pa.LargeStringArray, first: int, *, ordered: bool) -> tuple[Hashes, Ints]:
    """Return the hash of each word, and the index of its text, counted from `first`."""
    data, offsets = text_buffers(texts)
    data = data[int(offsets[0]) : int(offsets[-1])]
    codes: npt.NDArray[Any] = data
    starts = offsets[:-1] - offsets[0]
    if len(data) and data.max() > 0x7F:
        codes = np.frombuffer(bytes(data).decode().encode("utf-32-le"), np.uint32)
        lengths = pc.utf8_length(texts).to_numpy()
        starts = np.cumsum(lengths) - lengths
    kind_of, value_of = tables()
    kinds = taken(kind_of, codes)
    if (is_mark := kinds == MARK).any():
        before = np.append(0, np.cumsum(~is_mark))
        starts, codes, kinds = before[starts], codes[~is_mark], kinds[~is_mark]
    if not len(kinds):
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    begins = np.ones(len(kinds), np.bool_)
    begins[1:] = (kinds[1:] != kinds[:-1]) | (kinds[1:] == ALONE)
    begins[starts[starts < len(kinds)]] = True
    begins &= kinds > 0
    at = np.flatnonzero(begins)
    if not len(at):
        return np.empty(0, np.uint64), at
    values = taken(value_of, codes)
    if ordered:
        powers, inverse = _powers()
        values = values * powers[: len(codes)]
    # sums: (characters,), of each and all before it; separators add nothing
    sums = np.cumsum(values)
    hashes = np.diff(sums[np.append(at[1:], len(sums)) - 1], prepend=np.uint64(0))
    counts = np.diff(np.append(np.searchsorted(at, starts), len(at)))  # words of each text
    owners = np.repeat(np.arange(first, first + len(starts)), counts)
    return scrambled(hashes * inverse[at]) if ordered else hashes, owners


def _sums(words: Hashes, count: int) -> Hashes:
    """Return the sum of each `count` consecutive words, word i times the i-th power of a constant.

    Sums of 2, 4, 8 ... words are built by doubling: a sum of 13 words consists of 1 + 4 + 8 words.
    """
    length = len(words) - count + 1
    total = np.zeros(length, np.uint64)
    block, size, power, done, scale = words, 1, _NEXT, 0, np.uint64(1)
    with np.errstate(over="ignore"):
        while True:
            if count & size:
                total += block[done : done + length] * scale
                done, scale = done + size, scale * power
            size *= 2
            if size > count:
                return total
            block = block[: len(block) - size // 2] + block[size // 2 :] * power
            power = power * power


@cache
def _powers() -> tuple[Hashes, Hashes]:
    """Return the powers of the base, and the inverse of each mod 2^64."""
    bases = np.array([_BASE, pow(_BASE, -1, 2**64)], np.uint64)[:, None]
    factors = np.broadcast_to(bases, (2, 2 * SEGMENT)).copy()
    factors[:, 0] = 1
    powers, inverse = np.multiply.accumulate(factors, axis=1)
    return powers, inverse


@cache
def tables() -> tuple[npt.NDArray[np.uint8], Hashes]:
    """Return the kind of each code point, and a number for its form: (0x110000,) each."""
    kinds = np.zeros(CODE_POINTS, np.uint8)
    forms = np.arange(CODE_POINTS, dtype=np.uint64)
    known = np.zeros(CODE_POINTS, np.bool_)
    for start, end, kind in UNIFORM:
        kinds[start:end], known[start:end] = kind, True
    for code in np.flatnonzero(~known).tolist():
        letter = chr(code)
        category = unicodedata.category(letter)[0]
        if category == "M":
            kinds[code] = MARK
        elif category in "LN":
            kinds[code] = WORD
            forms[code] = _form(letter)
    for start, end in _WITHOUT_SPACES:
        own = kinds[start:end]
        own[own == WORD] = ALONE
    return kinds, np.where(kinds > 0, scrambled(forms + np.uint64(1)), np.uint64(0))


def _form(letter: str) -> int:
    """Return a number that letters share if they differ only in case, width and accents."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", letter).casefold())
    plain = [each for each in folded if not unicodedata.category(each).startswith("M")]
    if len(plain) == 1:
        return ord(plain[0])
    return xxhash.xxh3_64_intdigest("".join(plain))
