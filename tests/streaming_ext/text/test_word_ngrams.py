"""N-grams of words equal those of a plain loop over characters."""

import random
import unicodedata

import pyarrow as pa
import pytest

from streaming_ext.text.word_ngrams import word_ngrams

ALPHABET = "aB9é\u0301 .\n-中のกΣß𝕏"


def words_of(text: str) -> list[str]:
    """Return words by the rules of the module, one character after another."""
    found, inside = list[str](), False
    for letter in text:
        kind = unicodedata.category(letter)[0]
        if kind == "M":
            continue
        if kind not in "LN":
            inside = False
            continue
        folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", letter).casefold())
        form = "".join(each for each in folded if not unicodedata.combining(each))
        alone = letter in "中のก"
        if inside and not alone:
            found[-1] += form
        else:
            found.append(form)
        inside = not alone
    return found


@pytest.mark.parametrize("count", [1, 2, 5, 13])
def test_ngrams_are_those_of_a_plain_loop(count) -> None:
    draw = random.Random(count)
    texts = ["".join(draw.choices(ALPHABET, k=draw.randrange(90))) for _ in range(400)]
    texts[7:9] = ["long words " * 40_000, "long\nlines\n" * 20_000]  # they are cut between words
    found = word_ngrams(pa.array(texts, pa.large_string()), count)
    expected = [
        (number, tuple(words[first : first + count]))
        for number, words in enumerate(map(words_of, texts))
        for first in range(len(words) - count + 1)
    ]
    assert found.texts.tolist() == [number for number, _ in expected]
    hashes: dict[tuple[str, ...], int] = {}
    for value, (_, ngram) in zip(found.hashes.tolist(), expected, strict=True):
        assert hashes.setdefault(ngram, value) == value
    assert len({*hashes.values()}) == len(hashes)


def test_case_width_accents_and_punctuation_make_no_difference() -> None:
    wide = "\uff43\uff41\uff46\uff45 au\nlait"
    texts = ["Café au lait!", "CAFE\u0301 -- au (LAIT)", wide, "cafe au laits"]
    first, *others = word_ngrams(pa.array(texts, pa.large_string()), 3).hashes.tolist()
    assert [other == first for other in others] == [True, True, False]


def test_the_hash_is_pinned() -> None:
    found = word_ngrams(pa.array(["one two three"], pa.large_string()), 3)
    assert found.hashes.tolist() == [16892857788573559330]
