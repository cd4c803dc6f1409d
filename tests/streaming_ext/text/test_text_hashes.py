"""The split of a document depends on its text and the seed alone; copies have one normal form."""

import random
import unicodedata

import numpy as np
import pyarrow as pa
import pytest

from streaming_ext.text.text_hashes import document_hashes, held_out, normal_form, normal_forms


def arrow(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


# Published with xxHash and python-xxhash.
@pytest.mark.parametrize(
    ("text", "seed", "expected"),
    [
        ("", 0, 0x2D06800538D394C2),
        ("a", 0, 16629034431890738719),
        ("a", 1, 15201566949650179872),
        ("a", 2**64 - 1, 4875116479388997462),
    ],
)
def test_published_vectors(text: str, seed: int, expected: int) -> None:
    hashes = document_hashes(arrow(["left out", "before", text, "after", "end"])[1:], seed=seed)
    assert hashes.dtype == np.uint64
    assert hashes.shape == (4,)
    assert int(hashes[1]) == expected


@pytest.mark.parametrize(
    ("fraction", "last_inside"),
    [
        (0.5, 2**63 - 1),
        (0.25, 2**62 - 1),
        (2.0**-64, 0),
        (1 - 2.0**-53, 2**64 - 2**11 - 1),
    ],
)
def test_the_threshold_is_exact(fraction: float, last_inside: int) -> None:
    hashes = np.array([last_inside, last_inside + 1], np.uint64)
    assert held_out(hashes, fraction=fraction).tolist() == [True, False]


def test_no_documents() -> None:
    hashes = document_hashes(arrow([]), seed=0)
    assert hashes.shape == held_out(hashes, fraction=0.5).shape == (0,)


# Marks, vowels and final consonants that compose with the character before them.
_COMPOSING = [*"\u0301\u0345\u0327\u1161\u11a8\u1100\uac00\u09be\u09c7"]
# Case folding keeps the length, changes it, gives ASCII, or changes nothing.
_LETTERS = [*"aAzZ\u00e9\u00c9\u00df\u1e9e\u0130\u0131\u017f\u212a\u212b\u03a3\u03c2\u2019"]
_LETTERS += [*"\u2014\uac00\u4e2d\ufb01\U0001f600\U00010400\U0001e921"]
_SPACES = [*" \t\n\r\x0b\x1c\x85\xa0\u1680\u2003\u2028\u3000"]


def compare(texts: list[str]) -> None:
    given = pa.array(["before", *texts], pa.large_string())[1:]  # its offsets do not begin at 0
    assert normal_forms(given).to_pylist() == [normal_form(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("  A  b\n", "a b"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("E\u0301tude", "\u00e9tude"),
        ("\u00c9TUDE", "\u00e9tude"),
        ("a\u00a0\u3000b", "a b"),
        (" \n\t", ""),
        ("", ""),
    ],
)
def test_by_hand(text: str, form: str) -> None:
    assert normal_form(text) == form
    compare([text])


def test_each_code_point() -> None:
    letters = [chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    step = 7  # all of them take seconds; those that change or compose are included
    chosen = [
        letter
        for number, letter in enumerate(letters)
        if number % step == 0
        or letter.casefold() != letter
        or letter.isspace()
        or unicodedata.combining(letter)
        or unicodedata.decomposition(letter)
    ]
    compare([f"A{letter} {letter}\u00c9" for letter in chosen])


def test_at_random() -> None:
    drawn = random.Random(0)
    alphabet = _COMPOSING + _LETTERS + _SPACES * 2
    compare(["".join(drawn.choices(alphabet, k=drawn.randrange(9))) for _ in range(3000)])


def test_long_white_space() -> None:
    compare([" " * 100 + "x" + " " * length for length in range(0, 200, 7)] + [" " * 90])
