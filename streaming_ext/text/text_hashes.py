"""Hashes of texts, which decide which documents are held out and which are copies of others.

A keyed hash of the text alone decides on the holdout, before anything is packed. So exact
duplicates fall on the same side, and neither the order of files nor the number of workers matters.
A larger fraction with the same seed holds out a superset.

Copies are texts with the same 128-bit hash. Among 10^10 different texts, two share a hash with a
probability of 10^-19. XXH3 is not a cryptographic hash: an author could craft texts that collide.

Texts are compared unchanged, or case-folded, in NFC, with white space collapsed. Whole batches are
normalized at once, byte by byte; only texts with characters that take part in compositions, or
whose folded form has another length in UTF-8, are normalized one by one.
"""

import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import ConfigMismatchError
from streaming_ext.format.duplicates import Comparison
from streaming_ext.format.shuffled import Keys, ascending
from streaming_ext.text.documents.text_array import cut_by_bytes, text_buffers
from streaming_ext.text.word_ngrams import CODE_POINTS, UNIFORM

UNICODE: Final = unicodedata.unidata_version  # of this Python
_SPACE: Final = ord(" ")
_FIRST_BEYOND_ASCII: Final = 0x80
# Vowels and final consonants of Hangul compose with the character before them.
_JAMO: Final = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))
_BATCH_BYTES: Final = 2**19  # fits the cache of a core


def document_hashes(texts: pa.LargeStringArray, *, seed: int) -> npt.NDArray[np.uint64]:
    """Hash the UTF-8 bytes of each document with XXH3-64, keyed with `seed`: (num_documents,)."""
    digest = xxhash.xxh3_64_intdigest
    return np.fromiter((digest(text, seed) for text in _each(texts)), np.uint64, len(texts))


def held_out(hashes: npt.NDArray[np.uint64], *, fraction: float) -> npt.NDArray[np.bool_]:
    """Return a mask of the documents that are held out, (num_documents,).

    Args:
        hashes: the result of `document_hashes`.
        fraction: the fraction to hold out, in [0, 1).
    """
    # The product is exact: a float is a binary fraction, and 2**64 only shifts it.
    return hashes < np.uint64(int(fraction * 2**64))


def text_digests(texts: pa.LargeStringArray) -> npt.NDArray[np.uint64]:
    """Hash the UTF-8 bytes of each text with XXH3-128: (texts, 2), the upper 64 bits first."""
    joined = b"".join(map(xxhash.xxh3_128_digest, _each(texts)))
    return np.frombuffer(joined, ">u8").astype(np.uint64).reshape(-1, 2)


def first_ones(high: Keys, low: Keys) -> tuple[Ints, Ints]:
    """Return the order of texts by hash, and for each text in this order the first of its hash.

    Both are indexes of texts, (texts,); texts of one hash stay in their order.

    Args:
        high, low: halves of the hash of each text, (texts,).
    """
    order = ascending(high)
    if (np.diff(high[order]) == 0)[np.diff(low[order]) != 0].any():  # they share only this half
        order = np.lexsort((low, high))
    same = (np.diff(high[order]) == 0) & (np.diff(low[order]) == 0)
    begins = np.append(True, ~same)[: len(order)]
    return order, order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]


def _each(texts: pa.LargeStringArray) -> Iterator[memoryview]:
    data, offsets = text_buffers(texts)
    view = data.data
    return (view[start:end] for start, end in pairwise(offsets.tolist()))


def compared_texts(
    texts: pa.LargeStringArray, comparison: Comparison | None, unicode: str | None
) -> pa.LargeStringArray:
    """Return the form of the texts that is compared, and that decides on the holdout.

    Args:
        texts: the texts, without nulls.
        comparison: the form in which texts are compared; None if copies are not looked for.
        unicode: the version of Unicode that defines the normal form.

    Raises:
        ConfigMismatchError: this Python has another version of Unicode.
    """
    if comparison != "normalized":
        return texts
    require_unicode(unicode)
    return normal_forms(texts)


def require_unicode(unicode: str | None) -> None:
    """Check that this Python normalizes texts with the given version of Unicode.

    Raises:
        ConfigMismatchError: this Python has another version.
    """
    if unicode != UNICODE:
        raise ConfigMismatchError(
            f"Texts are compared as Unicode {unicode} normalizes them, this Python has {UNICODE}. "
            "Use the Python version with which the dataset was started, on every host."
        )


def normal_form(text: str) -> str:
    """Return a text case-folded, in NFC, with single spaces for white space, none at the ends."""
    folded = unicodedata.normalize("NFD", text).casefold()
    return " ".join(unicodedata.normalize("NFC", folded).split())


def normal_forms(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    """Return `normal_form` of each text."""
    chunks = [_forms(texts[start:end]) for start, end in cut_by_bytes(texts, _BATCH_BYTES)]
    return pa.concat_arrays(chunks) if chunks else texts


def _forms(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    data, offsets = text_buffers(texts)
    data, offsets = data[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0]
    data = np.frombuffer(bytearray(data.data).translate(_ascii_table()), np.uint8)
    alone = _fold_beyond_ascii(data, offsets)
    # Remove all but the first of each run of spaces, and all at the beginning of a text.
    spaces = data == _SPACE
    removed = spaces.copy()
    removed[1:] &= spaces[:-1]
    starts = offsets[:-1][offsets[:-1] < offsets[1:]]
    removed[starts] = spaces[starts]
    data, offsets = _without(data, offsets, np.flatnonzero(removed))
    # One space may be left at the end of a text.
    lasts = offsets[1:][offsets[:-1] < offsets[1:]] - 1
    data, offsets = _without(data, offsets, lasts[data[lasts] == _SPACE])
    forms = pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(data))
    if len(alone):
        mask = np.zeros(len(texts), np.bool_)
        mask[alone] = True
        others = [normal_form(text) for text in texts.take(pa.array(alone)).to_pylist()]
        forms = pc.replace_with_mask(forms, pa.array(mask), pa.array(others, pa.large_string()))
    return forms


def _without(
    data: npt.NDArray[np.uint8], offsets: Ints, removed: Ints
) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Remove the bytes at some positions of texts."""
    if not len(removed):
        return data, offsets
    kept = np.ones(len(data), np.bool_)
    kept[removed] = False
    bits = pa.py_buffer(np.packbits(kept, bitorder="little"))  # faster than `pa.array(kept)`
    mask = pa.BooleanArray.from_buffers(pa.bool_(), len(data), [None, bits])
    return pa.array(data).filter(mask).to_numpy(), offsets - np.searchsorted(removed, offsets)


@cache
def _ascii_table() -> bytes:
    """Return the folded form of each byte; bytes beyond ASCII stay."""
    table = bytearray(range(256))
    for code in range(_FIRST_BEYOND_ASCII):
        letter = chr(code)
        table[code] = _SPACE if letter.isspace() else ord(letter.casefold())
    return bytes(table)


@cache
def _tables() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_]]:
    """Return tables by code point, (0x110000,) each.

    Returns:
        becomes: the folded form in UTF-8 as a number, the first byte lowest; 0 if it is the same.
        alone: a mask of the characters whose texts are normalized one by one.
    """
    becomes = np.zeros(CODE_POINTS, np.uint32)
    alone = np.zeros(CODE_POINTS, np.bool_)
    plain = np.arange(CODE_POINTS) < _FIRST_BEYOND_ASCII
    for start, end, _ in UNIFORM:
        plain[start:end] = True
    others = [chr(code) for code in np.flatnonzero(~plain).tolist()]
    decomposed = {letter: unicodedata.normalize("NFD", letter) for letter in others}
    seconds = {second for letters in decomposed.values() for second in letters[1:]}
    seconds.update(map(chr, _JAMO))
    for letter, letters in decomposed.items():
        folded = unicodedata.normalize("NFD", letters.casefold())
        own, form = letter.encode(), unicodedata.normalize("NFC", folded).encode()
        if letter.isspace():
            form = b" " * len(own)
        elif (
            len(form) != len(own)
            or unicodedata.combining(letters[0])
            or unicodedata.combining(folded[0])
            or folded[0] in seconds
        ):
            alone[ord(letter)] = True
            continue
        if form != own:
            becomes[ord(letter)] = int.from_bytes(form, "little")
    return becomes, alone


def _fold_beyond_ascii(data: npt.NDArray[np.uint8], offsets: Ints) -> Ints:
    """Fold non-ASCII characters in place; return the texts that must be normalized one by one."""
    leads = np.flatnonzero(data >= 0xC0)  # bytes that begin a character
    if not len(leads):
        return leads
    becomes, alone = _tables()
    found = []
    for size, low, high in ((2, 0xC0, 0xE0), (3, 0xE0, 0xF0), (4, 0xF0, 0xF8)):
        at = leads[(data[leads] >= low) & (data[leads] < high)]
        # codes: (characters of `size` bytes,)
        codes = (data[at] - low).astype(np.uint32)
        for step in range(1, size):
            codes = (codes << 6) | (data[at + step] & 0x3F)
        found.append(at[alone[codes]])
        forms = becomes[codes]
        at, forms = at[forms > 0], forms[forms > 0]
        for step in range(size):
            data[at + step] = (forms >> (8 * step)) & 0xFF
    rows: Ints = np.searchsorted(offsets, np.concatenate(found), side="right") - 1
    return np.unique(rows)
