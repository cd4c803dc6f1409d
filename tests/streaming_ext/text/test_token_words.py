"""The n-grams from ids are those of the text, however its bytes are cut into tokens."""

import random
import unicodedata

import numpy as np
import pyarrow as pa
import pytest

from streaming_ext.text.token_words import TokenWords, is_changed
from streaming_ext.text.word_ngrams import (
    ALONE,
    WORD,
    are_inside,
    tables,
    words_of,
)

PLAIN = "aB9 .\n-"
# Letters of every kind, quotation marks, ideographs, marks, emoji.
ALPHABET = PLAIN * 2 + "é각\u1100\u1161\u1fb3\u03b1\u0345\u0301ß中のЖ€\u2019“\u2009😀"


def sums_of_text(text: str) -> list[int]:
    return (
        words_of(pa.array([text], pa.large_string()), ordered=False)
        .hashes.astype(np.uint32)
        .tolist()
    )


@pytest.mark.parametrize("most", [1, 2, 4, 9])
@pytest.mark.parametrize("composes", [False, True])
def test_ids_tell_the_ngrams_of_their_text(most: int, composes: bool) -> None:
    draw = random.Random(most)
    texts = ["".join(draw.choices(ALPHABET, k=draw.randrange(40))) for _ in range(300)]
    texts += ["".join(draw.choices(PLAIN, k=draw.randrange(40))) for _ in range(300)]
    numbers: dict[bytes, int] = {}
    rows = []
    for text in texts:
        data = (unicodedata.normalize("NFC", text) if composes else text).encode()
        rows.append([])
        while data:
            size = draw.randrange(1, most + 1)
            rows[-1].append(numbers.setdefault(data[:size], len(numbers)))
            data = data[size:]
    words = TokenWords({id_: token for token, id_ in numbers.items()}, composes=composes)
    ids = np.array([id_ for row in rows for id_ in row], np.uint32)
    offsets = np.cumsum([0, *map(len, rows)])
    unknown = {
        *(np.searchsorted(offsets, words.unknown(words.flags(ids)), side="right") - 1).tolist()
    }
    assert not any(number >= 300 for number in unknown), "plain texts are known"
    sums = words.sums(ids, words.flags(ids), offsets)
    owners = np.searchsorted(offsets, sums.firsts, side="right") - 1
    for number, text in enumerate(texts):
        if number not in unknown:
            expected = sums_of_text(text)
            first, end = offsets[number : number + 2]
            one = ids[first:end]
            alone = words.sums(one, words.flags(one), np.array([0, end - first]))
            assert np.diff(alone.before).tolist() == expected, text
            assert np.diff(sums.before)[owners == number].tolist() == expected, text


def test_ngrams_over_the_end_of_a_text_are_flagged() -> None:
    owners = np.array([0, 0, 1, 1, 1])
    assert are_inside(owners, 2).tolist() == [True, False, True, True]
    assert are_inside(owners, 5).tolist() == [False]
    assert are_inside(owners, 6).tolist() == []


def test_a_character_that_is_cut_is_known_if_it_separates_words() -> None:
    tokens = [b"it", b"\xe2\x80", b"\x99s", b"\xe2", b"\x9c\x93", b" a \xd0", b"\x96"]
    words = TokenWords(dict(enumerate(tokens)), composes=False)
    flags = words.flags(np.arange(7, dtype=np.uint32))
    assert words.unknown(flags[:3]).tolist() == []
    assert words.unknown(flags[3:]).tolist() == [0, 2]
    sums = words.sums(np.arange(3, dtype=np.uint32), flags[:3], np.array([0, 3]))
    assert np.diff(sums.before).tolist() == sums_of_text("it\u2019s")


def test_ids_that_the_vocabulary_lacks_are_unknown() -> None:
    words = TokenWords({3: b"a", 1: b""}, composes=True)
    assert words.unknown(words.flags(np.array([3, 0, 1, 2], np.uint32))).tolist() == [1, 2, 3]


def test_nfc_makes_other_words_of_no_character_that_is_known() -> None:
    kind_of, value_of = tables()

    def words(text: str) -> list[tuple[int, int]]:
        points = [ord(each) for each in text]
        return [(kind_of[p] == ALONE, value_of[p]) for p in points if kind_of[p] in (WORD, ALONE)]

    changed = set()
    for point in range(0x110000):
        if 0xD800 <= point < 0xE000:
            continue
        composed = unicodedata.normalize("NFC", chr(point))
        decomposed = unicodedata.normalize("NFD", composed)
        known = words(composed)
        if any(is_changed(ord(each)) for each in composed if kind_of[ord(each)] in (WORD, ALONE)):
            changed.add(point)
        else:
            assert words(chr(point)) == known == words(decomposed), hex(point)
    assert not any(chr(point) in "éñЙがコ漢" for point in changed)
    assert {0xAC00, 0x1FB3} <= changed
