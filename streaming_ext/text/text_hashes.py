"""Hashes of texts: which documents are held out, and which are copies of others.

A keyed hash of the text alone decides on the holdout, before anything is packed. So exact
duplicates fall on the same side, and neither the order of files nor the number of workers matters;
a larger fraction with the same seed holds out a superset.

Copies are texts of the same 128-bit hash: of 10^10 different texts, two have the same one with a
probability of 10^-19. XXH3 is no cryptographic hash: an author of texts could make some collide.

Texts are compared unchanged, or case-folded, in NFC, with white space collapsed.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import ConfigMismatchError
from streaming_ext.format.duplicates import Comparison
from streaming_ext.format.shuffled import Keys, ascending
from streaming_ext.text.documents.text_array import text_buffers

UNICODE: Final = unicodedata.unidata_version  # of this Python
# Characters that hold U+0345, which folds to a letter.
_IOTA_SUBSCRIPT: Final = re.compile("[\u0345\u1f80-\u1fff]")


def document_hashes(texts: pa.LargeStringArray, *, seed: int) -> npt.NDArray[np.uint64]:
    """XXH3-64 of the UTF-8 bytes of each document, keyed with `seed`; shape (num_documents,)."""
    digest = xxhash.xxh3_64_intdigest
    return np.fromiter((digest(text, seed) for text in _each(texts)), np.uint64, len(texts))


def held_out(hashes: npt.NDArray[np.uint64], *, fraction: float) -> npt.NDArray[np.bool_]:
    """Find the documents that are held out; shape (num_documents,).

    Args:
        hashes: the result of `document_hashes`.
        fraction: the fraction to hold out, in [0, 1).
    """
    # The threshold is an exact integer: fraction is a binary fraction, times a power of two.
    return hashes < np.uint64(int(fraction * 2**64))


def text_digests(texts: pa.LargeStringArray) -> npt.NDArray[np.uint64]:
    """XXH3-128 of the UTF-8 bytes of each text: (texts, 2), the upper 64 bits first."""
    joined = b"".join(map(xxhash.xxh3_128_digest, _each(texts)))
    return np.frombuffer(joined, ">u8").astype(np.uint64).reshape(-1, 2)


def first_ones(high: Keys, low: Keys) -> tuple[Ints, Ints]:
    """The order of texts by hash, and of each text in this order the first one of its hash.

    Both are indexes of texts, (texts,); texts of one hash stay in their order.

    Args:
        high, low: halves of the hash of each text, (texts,).
    """
    order = ascending(high)
    if (np.diff(high[order]) == 0)[np.diff(low[order]) != 0].any():  # half of a hash in common
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
    """The form of texts that is compared, and that decides on the holdout.

    Args:
        texts: without nulls.
        comparison: None if copies are not looked for.
        unicode: the version of Unicode of a normal form.

    Raises:
        ConfigMismatchError: this Python has another version of Unicode.
    """
    if comparison != "normalized":
        return texts
    if unicode != UNICODE:
        raise ConfigMismatchError(
            f"Texts are compared as Unicode {unicode} normalizes them, this Python has {UNICODE}. "
            "Use the Python version with which the dataset was started, on every host."
        )
    return pa.array(map(normal_form, texts.to_pylist()), pa.large_string())


def normal_form(text: str) -> str:
    """One text case-folded, in NFC, each run of white space one space, none at the ends.

    Folding goes by the decomposed text. Without an iota subscript, a text in NFC whose folded form
    is in NFC too gives the same.
    """
    folded = text.casefold()
    if not text.isascii() and not (
        unicodedata.is_normalized("NFC", text)
        and unicodedata.is_normalized("NFC", folded)
        and _IOTA_SUBSCRIPT.search(text) is None
    ):
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())
    return " ".join(folded.split())
