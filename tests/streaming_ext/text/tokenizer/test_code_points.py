"""The table lists the code points on which engines disagree, and they are found in texts."""

import re
import unicodedata
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.text.tokenizer.unsafe_texts import Ranges, UnsafeTexts, unsafe_ranges
from tests.streaming_ext.text.tokenizer.trial import PROBES, try_code_points

RENEW = "renew the table of code points? See tests/streaming_ext/text/tokenizer/trial.py"
POINTS = st.integers(0x80, 0x10FFFF).filter(lambda point: not 0xD800 <= point < 0xE000)

CONSTRAINTS = Path(__file__).parents[4] / "constraints.txt"
VERSIONS = {package: version(package) for package in ("gigatoken", "tokenizers", "tiktoken")}
PINNED = {
    package: re.search(rf"^{package}==(.+)", CONSTRAINTS.read_text(), re.M)[1]
    for package in VERSIONS
}


def points_of(ranges: Ranges) -> set[int]:
    return {point for start, end in ranges for point in range(start, end + 1)}


UNSAFE = points_of(unsafe_ranges())
UNASSIGNED = UNSAFE - points_of(unsafe_ranges(PINNED))
# All but the surrogates and the planes 4 to 13, which Unicode leaves unassigned.
USED = [p for p in range(0x80, 0x110000) if not (0xD800 <= p < 0xE000 or 0x40000 <= p < 0xE0000)]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data(), odd=st.sets(POINTS, min_size=1, max_size=6))
def test_documents_are_found_as_by_hand(data: st.DataObject, odd: set[int]) -> None:
    """Tokens of any size hold the text; few or many of them cut a character."""
    near = [chr(p + d) for p in odd for d in (-1, 0, 1, 64) if 0x80 <= p + d < 0xD800]
    char = st.one_of(st.sampled_from([*near, *map(chr, odd)]), st.sampled_from("a\n\0 é漢😀"))
    texts = data.draw(st.lists(st.text(char, max_size=12), max_size=5))
    padding = data.draw(st.sampled_from(["", "a" * 200]))
    size = data.draw(st.integers(1, 7))
    numbers: dict[bytes, int] = {b"<reserved>": 0}
    rows = []
    for text in texts:
        data_ = (text + padding).encode()
        tokens = [data_[start : start + size] for start in range(0, len(data_), size)]
        rows.append([numbers.setdefault(token, len(numbers)) for token in tokens])
    reserved = data.draw(st.integers(-1, len(rows) - 1))
    if reserved >= 0:
        rows[reserved].append(0)
    found = UnsafeTexts(
        {number: token for token, number in numbers.items()},
        [(point, point) for point in sorted(odd)],
        [0],
    ).rows(
        np.array([id_ for row in rows for id_ in row], np.uint32),
        np.cumsum([0, *map(len, rows)]),
    )
    assert found.tolist() == [
        row
        for row, text in enumerate(texts)
        if row == reserved or any(ord(char) in odd for char in text)
    ]


def test_what_unicode_assigned_long_ago_is_trusted() -> None:
    old = {p for p in range(0x110000) if unicodedata.ucd_3_2_0.category(chr(p)) != "Cn"}
    assert old & UNSAFE == {0x295}
    assert {0x7FD, 0xC3C, 0x11839} <= UNSAFE  # marks that not all tables of NFC know
    assert max(UNSAFE) == 0x10FFFF
    assert min(UNSAFE) > 0x80


def test_unassigned_code_points_are_trusted_with_known_versions_only() -> None:
    assert len(UNASSIGNED) == 1341
    assert {0x378, 0xF48, 0x17DE} <= UNASSIGNED  # holes in the blocks of Greek, Tibetan, Khmer
    for package in VERSIONS:
        newer = {**PINNED, package: "1.0rc1"}
        assert points_of(unsafe_ranges(newer)) == UNSAFE
    assert points_of(unsafe_ranges({"gigatoken": "0.10", "tokenizers": "0.20.3"})) < UNSAFE


@pytest.mark.parametrize(("probe", "name"), PROBES)
def test_where_engines_differ_is_in_the_table(probe, name) -> None:
    """This test covers Latin, Greek and unassigned code points, the one below all of Unicode."""
    found = try_code_points(probe(name), [*range(0x80, 0x400), *sorted(UNASSIGNED)])
    assert found <= points_of(unsafe_ranges(VERSIONS)), RENEW
    assert 0x295 in found or name != "o200k_base"  # its class changed


@pytest.mark.soak
@pytest.mark.parametrize(("probe", "name"), PROBES)
def test_where_engines_differ_in_all_of_unicode_is_in_the_table(probe, name) -> None:
    found = try_code_points(probe(name), USED)
    assert found, "the versions of Unicode are said to differ"
    assert found <= points_of(unsafe_ranges(VERSIONS)), RENEW
