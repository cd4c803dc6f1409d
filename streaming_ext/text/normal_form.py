"""Texts as they are compared: unchanged, or case-folded, in NFC, with white space collapsed.

Whole batches are normalized at once, byte by byte; only texts with characters that take part in
compositions, or whose folded form has another length in UTF-8, go through Python one by one.
"""

import unicodedata
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import ConfigMismatchError
from streaming_ext.format.duplicates import Comparison
from streaming_ext.text.documents.text_array import cut_by_bytes, text_buffers

Bytes = npt.NDArray[np.uint8]

UNICODE: Final = unicodedata.unidata_version  # of this Python
_SPACE: Final = 0x20
_FIRST_BEYOND_ASCII: Final = 0x80
_CODE_POINTS: Final = 0x110000
# Ranges in which no character folds, composes, or is white space: all others are looked at.
_PLAIN: Final = (
    (0x3400, 0x4DC0),
    (0x4E00, 0xA000),
    (0xAC00, 0xD7A4),
    (0xD800, 0xF900),
    (0x20000, 0x2F800),
    (0x2FA20, _CODE_POINTS),
)
# Vowels and final consonants of Hangul compose with what stands before them.
_JAMO: Final = ((0x1161, 0x1176), (0x11A8, 0x11C3))
_PIECE_BYTES: Final = 2**19  # what a core keeps near itself
_STEPS: Final = 64  # of white space at the end of texts, looked at together


def compared_texts(
    texts: pa.LargeStringArray, comparison: Comparison | None, unicode: str | None
) -> pa.LargeStringArray:
    """What of some texts is compared, and decides on the holdout.

    Args:
        texts: without nulls.
        comparison: None where copies are not looked for.
        unicode: the version of Unicode that a normal form is of.

    Raises:
        ConfigMismatchError: this Python knows another version of Unicode.
    """
    if comparison != "normalized":
        return texts
    if unicode != UNICODE:
        raise ConfigMismatchError(
            f"Texts compare as Unicode {unicode} normalizes them, this Python knows {UNICODE}. "
            "Use a Python of the version that the dataset was begun with, on every host."
        )
    return normal_forms(texts)


def normal_form(text: str) -> str:
    """One text case-folded, in NFC, each run of white space one space, none at the ends."""
    folded = unicodedata.normalize("NFD", text).casefold()
    return " ".join(unicodedata.normalize("NFC", folded).split())


def normal_forms(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    """`normal_form` of each text."""
    pieces = [_forms_of_piece(texts[start:end]) for start, end in cut_by_bytes(texts, _PIECE_BYTES)]
    return pa.concat_arrays(pieces) if pieces else texts


def _forms_of_piece(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    data, offsets = text_buffers(texts)
    offsets = offsets - offsets[:1]
    first = int(text_buffers(texts)[1][0])
    raw = data[first : first + int(offsets[-1])]
    folded = np.frombuffer(bytearray(raw.data).translate(_ascii_table()), np.uint8)
    longer = {}
    for index in _fold_beyond_ascii(folded, offsets).tolist():
        form = normal_form(texts[index].as_py()).encode()
        start, end = (int(offset) for offset in offsets[index : index + 2])
        if len(form) > end - start:
            longer[index] = form
            continue
        # white space at its end goes with that of all others
        folded[start:end] = np.frombuffer(form.ljust(end - start), np.uint8)
    folded, ends = _collapsed(folded, offsets)
    if longer:
        folded, ends = _replaced(folded, ends, longer)
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(folded))


@cache
def _ascii_table() -> bytes:
    """What each byte becomes; those beyond ASCII stay."""
    table = bytearray(range(256))
    for code in range(_FIRST_BEYOND_ASCII):
        letter = chr(code)
        table[code] = _SPACE if letter.isspace() else ord(letter.casefold())
    return bytes(table)


@cache
def _tables() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_]]:
    """Of each code point: its form in UTF-8 as a number, the first byte lowest, or 0 where it stays
    as it is; and whether a text with it must be looked at by itself.
    """
    becomes = np.zeros(_CODE_POINTS, np.uint32)
    alone = np.zeros(_CODE_POINTS, np.bool_)
    plain = np.zeros(_CODE_POINTS, np.bool_)
    plain[:_FIRST_BEYOND_ASCII] = True
    for start, end in _PLAIN:
        plain[start:end] = True
    looked_at = [chr(code) for code in np.flatnonzero(~plain).tolist()]
    decomposed = {letter: unicodedata.normalize("NFD", letter) for letter in looked_at}
    seconds = {second for letters in decomposed.values() for second in letters[1:]}
    seconds |= {chr(code) for start, end in _JAMO for code in range(start, end)}
    for letter, letters in decomposed.items():
        own = letter.encode()
        if letter.isspace():
            becomes[ord(letter)] = int.from_bytes(b" " * len(own), "little")
            continue
        folded = unicodedata.normalize("NFD", letters.casefold())
        form = unicodedata.normalize("NFC", folded).encode()
        if (
            len(form) != len(own)
            or unicodedata.combining(letters[0])
            or unicodedata.combining(folded[0])
            or folded[0] in seconds
        ):
            alone[ord(letter)] = True
        elif form != own:
            becomes[ord(letter)] = int.from_bytes(form, "little")
    return becomes, alone


def _fold_beyond_ascii(data: Bytes, offsets: Ints) -> Ints:
    """Fold in place what is not ASCII; returns the texts that must be looked at by themselves."""
    leads = np.flatnonzero(data >= 0xC0)  # bytes that begin a character
    if not len(leads):
        return leads
    becomes, alone = _tables()
    found = []
    begin = data[leads]
    for size, low, mask in ((2, 0xC0, 0x1F), (3, 0xE0, 0x0F), (4, 0xF0, 0x07)):
        high = 0x100 if size == 4 else low | (mask + 1)
        at = leads[(begin >= low) & (begin < high)]
        if not len(at):
            continue
        # codes: (characters of so many bytes,)
        codes = (data[at] & mask).astype(np.uint32)
        for place in range(1, size):
            codes = (codes << 6) | (data[at + place] & 0x3F)
        found.append(at[alone[codes]])
        forms = becomes[codes]
        at, forms = at[forms > 0], forms[forms > 0]
        for place in range(size):
            data[at + place] = (forms >> (8 * place)) & 0xFF
    places = np.concatenate(found)
    texts: Ints = np.unique(np.searchsorted(offsets, places, side="right") - 1)
    return texts


def _collapsed(data: Bytes, offsets: Ints) -> tuple[Bytes, Ints]:
    """Without spaces before and behind a text, and without all but one of a run of them."""
    filled = offsets[:-1] < offsets[1:]
    starts, ends = offsets[:-1][filled], offsets[1:][filled]
    spaces = data == _SPACE
    gone = np.zeros(len(data), np.bool_)
    np.logical_and(spaces[1:], spaces[:-1], out=gone[1:])  # behind another
    gone[starts[spaces[starts]]] = True
    gone[_first_of_last_spaces(spaces, starts, ends)] = True
    places = np.flatnonzero(gone)
    if not len(places):
        return data, offsets
    stays = pa.BooleanArray.from_buffers(
        pa.bool_(), len(data), [None, pa.py_buffer(np.packbits(~gone, bitorder="little"))]
    )
    left = pa.UInt8Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    kept = np.frombuffer(left.filter(stays).buffers()[1], np.uint8, len(data) - len(places))
    return kept, offsets - np.searchsorted(places, offsets)


def _first_of_last_spaces(spaces: npt.NDArray[np.bool_], starts: Ints, ends: Ints) -> Ints:
    """Where the white space at the end of each text begins that has any."""
    chosen = spaces[ends - 1]
    starts = starts[chosen]
    places: Ints = ends[chosen] - 1
    for _ in range(_STEPS):
        more = (places > starts) & spaces[places - 1]
        if not more.any():
            return places
        places = places - more
    for index in np.flatnonzero((places > starts) & spaces[places - 1]).tolist():
        start = int(starts[index])
        places[index] = start + len(spaces[start : places[index]].tobytes().rstrip(b"\1"))
    return places


def _replaced(data: Bytes, offsets: Ints, others: dict[int, bytes]) -> tuple[Bytes, Ints]:
    """Some texts, by their numbers, replaced by others."""
    sizes = np.diff(offsets)
    pieces: list[bytes | memoryview] = []
    done = 0
    view = data.data
    for index, form in others.items():
        pieces += [view[int(offsets[done]) : int(offsets[index])], form]
        sizes[index] = len(form)
        done = index + 1
    pieces.append(view[int(offsets[done]) : int(offsets[-1])])
    return np.frombuffer(b"".join(pieces), np.uint8), np.concatenate([[0], np.cumsum(sizes)])
