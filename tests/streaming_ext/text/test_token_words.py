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
    sums = words.sums(ids, offsets)
    unknown = {*(np.searchsorted(offsets, sums.unknown, side="right") - 1).tolist()}
    for number in unknown:
        assert composes, "all texts are known"
        assert any(is_changed(ord(each)) for each in texts[number]), "plain texts are known"
    owners = np.searchsorted(offsets, sums.firsts, side="right") - 1
    for number, text in enumerate(texts):
        if number not in unknown:
            expected = sums_of_text(text)
            first, end = offsets[number : number + 2]
            one = ids[first:end]
            alone = words.sums(one, np.array([0, end - first]))
            assert np.diff(alone.before).tolist() == expected, text
            assert np.diff(sums.before)[owners == number].tolist() == expected, text


def test_ngrams_over_the_end_of_a_text_are_flagged() -> None:
    owners = np.array([0, 0, 1, 1, 1])
    assert are_inside(owners, 2).tolist() == [True, False, True, True]
    assert are_inside(owners, 5).tolist() == [False]
    assert are_inside(owners, 6).tolist() == []


def test_a_character_that_is_cut_counts_where_it_begins() -> None:
    tokens = [b"it", b"\xe2\x80", b"\x99s", b" a\xf0", b"\x9f", b"\x98", b"\x80 \xd0", b"\x96b"]
    words = TokenWords(dict(enumerate(tokens)), composes=False)
    sums = words.sums(np.arange(8, dtype=np.uint32), np.array([0, 8]))
    assert np.diff(sums.before).tolist() == sums_of_text("it\u2019s a\U0001f600 Жb")
    assert sums.firsts.tolist() == [0, 2, 3, 6]
    assert sums.unknown.tolist() == []


def test_marks_end_no_word_but_a_document_does() -> None:
    tokens = [b"e", b"\xcc\x81", b"\xcc", b"\x82", b"a"]
    words = TokenWords(dict(enumerate(tokens)), composes=False)
    texts = ["e\u0301\u0302a\u0301", "\u0301a", "\u0301"]
    ids = np.array([0, 1, 2, 3, 4, 1, 1, 4, 1], np.uint32)
    sums = words.sums(ids, np.array([0, 6, 8, 9]))
    assert np.diff(sums.before).tolist() == [*map(sum, map(sums_of_text, texts[:2]))]
    assert sums.firsts.tolist() == [0, 7]
    assert sums.unknown.tolist() == []


def test_ids_that_the_vocabulary_lacks_are_unknown() -> None:
    words = TokenWords({3: b"a", 1: b""}, composes=True)
    sums = words.sums(np.array([3, 0, 1, 2], np.uint32), np.array([0, 4]))
    assert sums.unknown.tolist() == [1, 2, 3]


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
