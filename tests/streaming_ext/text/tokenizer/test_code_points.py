"""The code points on which the engines disagree are found, found again, and found in texts."""

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.text.tokenizer import code_points as codepoints
from streaming_ext.text.tokenizer.code_points import (
    UnsafeCodePoints,
    find_unsafe_code_points,
    key_of,
    known_ranges,
    try_all_code_points,
)
from streaming_ext.text.tokenizer.fast_tokenizer import probe_for, splitters
from streaming_ext.text.tokenizer.known_code_points import common_tokenizers
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

RENEW = "run: python -m streaming_ext.text.tokenizer.known_code_points"
POINTS = st.integers(0x80, 0x10FFFF).filter(lambda point: not 0xD800 <= point < 0xE000)


def rows_by_hand(points: UnsafeCodePoints, texts: Sequence[str]) -> list[int]:
    return [row for row, text in enumerate(texts) if any(ord(char) in points for char in text)]


def rows(points: UnsafeCodePoints, texts: Sequence[str], skip: int = 0) -> list[int]:
    """The rows with an unsafe code point, with the first `skip` texts before the first offset."""
    data = np.frombuffer("".join(texts).encode() or b" ", np.uint8)
    offsets = np.cumsum([0, *(len(text.encode()) for text in texts)])[skip:]
    return points.rows_with_any(data, offsets).tolist()


def test_a_set_of_code_points() -> None:
    points = UnsafeCodePoints.of([5, 3, 4, 9, 4, 0x10FFFF])
    assert points.ranges == ((3, 5), (9, 9), (0x10FFFF, 0x10FFFF))
    assert len(points) == 5
    assert [point for point in range(12) if point in points] == [3, 4, 5, 9]
    assert 0x10FFFF in points
    assert points.contains_any("a\tb")
    assert not points.contains_any("ab")
    assert not UnsafeCodePoints().contains_any("ab")


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.sets(st.integers(0, 0x10FFFF), max_size=30))
def test_json_round_trip(members: set[int]) -> None:
    points = UnsafeCodePoints.of(members)
    assert UnsafeCodePoints.from_json(json.loads(json.dumps(points.to_json()))) == points
    assert len(points) == len(members)


@pytest.mark.parametrize(
    "value", [[[2, 1]], [[1, 2], [3, 4]], [[5, 6], [1, 2]], [[0, 0x110000]], [[-1, 0]], [[1]], 7]
)
def test_json_that_is_no_such_set_is_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        UnsafeCodePoints.from_json(value)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data(), members=st.sets(POINTS, min_size=1, max_size=6))
def test_documents_are_found_as_by_hand(data: st.DataObject, members: set[int]) -> None:
    points = UnsafeCodePoints.of(members)
    near = [chr(p + d) for p in members for d in (-1, 0, 1, 64) if 0x80 <= p + d < 0xD800]
    char = st.one_of(st.sampled_from([*near, *map(chr, members)]), st.sampled_from("a é 漢😀"))
    texts = data.draw(st.lists(st.text(char, max_size=12), max_size=5))
    skip = data.draw(st.integers(0, len(texts)))
    assert rows(points, texts, skip) == rows_by_hand(points, texts[skip:])


@pytest.mark.parametrize("filler", ["a", "é", "漢", "a" * 30 + "\u2019"])
@pytest.mark.parametrize("where", [0, 1, 7, 8, 9, 500, 1023, 1024, 1025, 4095])
def test_documents_are_found_across_blocks(
    filler: str, where: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codepoints, "_SCAN_BYTES", 1024)
    points = UnsafeCodePoints.of([0x88F, 0x10940])
    for odd in ("\u088f", "\U00010940"):
        plain = filler * 3000
        texts = ["", plain[:where] + odd + plain[where:], plain, odd, plain + odd]
        assert rows(points, texts) == [1, 3, 4]
        assert rows(points, texts, skip=2) == [1, 2]
    assert rows(points, [filler * 3000]) == []


def test_ascii_is_not_scanned_for() -> None:
    with pytest.raises(ValueError, match="ASCII"):
        rows(UnsafeCodePoints(((0x41, 0x41),)), ["A"])


def test_old_characters_are_alike_in_all_tables(unsafe: UnsafeCodePoints) -> None:
    old = [point for point in range(0x3000) if unicodedata.ucd_3_2_0.category(chr(point)) != "Cn"]
    assert len(old) > 5000
    assert [hex(point) for point in old if point in unsafe] == []
    assert 0 < len(unsafe) < 20_000


# Two bytes each, by class.
CLASSES = {
    "lower": "é",
    "upper": "É",
    "title": "ǅ",
    "letter": "ªא",
    "modifier": "ʰ",
    "mark": "\u0301",
}
CLASSES |= {"number": "²٣", "space": "\u00a0", "other": "\u00d7«", "long s": "\u017f"}
LETTERS = ("lower", "upper", "title", "letter", "modifier")


@pytest.mark.parametrize(
    ("pattern", "groups"),
    [
        ("gpt2", [(*LETTERS, "long s"), ("number",), ("space",), ("other", "mark")]),
        ("cl100k_base", [LETTERS, ("long s",), ("number",), ("space",), ("other", "mark")]),
        (
            "o200k_base",
            [
                *(("lower",), ("long s",), ("upper", "title"), ("letter", "modifier")),
                *(("mark",), ("number",), ("space",), ("other",)),
            ],
        ),
    ],
)
def test_each_class_of_a_pattern_shows_in_the_probe(
    pattern: str, groups: list[tuple[str, ...]], rank_path: Path
) -> None:
    """What one engine took for another class would be split differently, and be found."""
    tokenizer = load_tokenizer(str(rank_path), pattern=pattern)
    probe = probe_for(tokenizer, codepoints._pairs())
    assert probe is not None
    # All edges of a character are merged alike, so the pairs among the ids tell where it was split.
    texts = [f"{each}\n" for each in codepoints._TEMPLATES]
    signatures = []
    for group in groups:
        members = [character for name in group for character in CLASSES[name]]
        found = {
            tuple(id_ >= 256 for each in texts for id_ in probe.reference(each.replace("{c}", c)))
            for c in members
        }
        assert len(found) == 1, group
        signatures.append(found.pop())
    assert len(set(signatures)) == len(groups)


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k_base", "o200k_base"])
def test_the_screen_tells_other_characters_from_the_rest(pattern: str, rank_path: Path) -> None:
    tokenizer = load_tokenizer(str(rank_path), pattern=pattern)
    probe = probe_for(tokenizer, codepoints._pairs())
    assert probe is not None

    def screened(character: str) -> tuple[bool, ...]:
        text = codepoints._SCREEN.replace("{c}", character)
        return tuple(id_ >= 256 for id_ in probe.reference(text))

    others = ["mark", "other"] if pattern != "o200k_base" else ["other"]
    for name, members in CLASSES.items():
        for character in members:
            assert (screened(character) == screened("\u00d7")) == (name in others), name


def test_a_swapped_class_is_found(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that takes é for a symbol and a symbol for a letter is caught at both."""
    monkeypatch.setattr(codepoints, "_NUM_CODE_POINTS", 0x800)
    probe = probe_for(tokenizer, codepoints._pairs())
    assert probe is not None
    tokens = [*(bytes([byte]) for byte in range(256)), *codepoints._pairs()]
    ids_by_token = {token: id_ for id_, token in enumerate(tokens)}
    swap = str.maketrans("é\u00d7", "\u00d7é")

    class Swapped:
        def encode(self, text: str) -> np.ndarray:
            """Split as if the two were swapped; the bytes are those of the text."""
            ids, position, data = [], 0, text.encode()
            for id_ in probe.reference(text.translate(swap)):
                size = len(tokens[id_])
                ids.append(ids_by_token[data[position : position + size]])
                position += size
            return np.array(ids, np.uint32)

    class Sound:
        def encode(self, text: str) -> np.ndarray:
            return np.array(probe.reference(text), np.uint32)

    assert codepoints._probe(probe.reference, Sound) == UnsafeCodePoints()
    assert codepoints._probe(probe.reference, Swapped) == UnsafeCodePoints.of(map(ord, "é\u00d7"))


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tokenizer's code points are known before."""
    monkeypatch.setattr(codepoints, "known_ranges", lambda _: None)


@pytest.mark.usefixtures("unknown")
def test_the_cache_is_used_and_a_damaged_one_is_not(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = UnsafeCodePoints(((0x88F, 0x88F),))
    calls: list[int] = []

    def probe(*_: object) -> UnsafeCodePoints:
        calls.append(1)
        return made

    monkeypatch.setattr(codepoints, "_probe", probe)
    cache = tmp_path / "a" / "b"
    assert find_unsafe_code_points(tokenizer, cache) == made
    assert find_unsafe_code_points(tokenizer, cache) == made
    assert len(calls) == 1
    (path,) = cache.iterdir()
    good = path.read_text()
    damages = ["", "{", "[]", good[:-9], good.replace("2191", "2192"), "null", '{"key": 1}']
    for number, damage in enumerate(damages, 2):
        path.write_text(damage)
        assert find_unsafe_code_points(tokenizer, cache) == made
        assert len(calls) == number
        assert path.read_text() == good
    assert [each.name for each in cache.iterdir()] == [path.name]


@pytest.mark.usefixtures("unknown")
def test_a_cache_that_cannot_be_written_is_no_error(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codepoints, "_probe", lambda *_: UnsafeCodePoints(((0x88F, 0x88F),)))
    (tmp_path / "file").touch()
    assert len(find_unsafe_code_points(tokenizer, tmp_path / "file")) == 1


@pytest.mark.usefixtures("unknown")
def test_ranks_do_not_matter_but_the_pattern_does(
    tokenizer: Tokenizer, rank_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codepoints, "_probe", lambda *_: UnsafeCodePoints())
    other = load_tokenizer(str(rank_path), pattern="gpt2", eot_token="<eos>")
    for each in (tokenizer, other):
        find_unsafe_code_points(each, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    find_unsafe_code_points(load_tokenizer(str(rank_path), pattern="o200k_base"), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_tried_where_the_fast_engine_is_not_used(
    rank_path: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(rank_path), pattern=r"\S+|\s+")
    assert find_unsafe_code_points(tokenizer, tmp_path) == UnsafeCodePoints()
    assert list(tmp_path.iterdir()) == []


def test_the_common_ones_are_known_and_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(codepoints, "_probe")
    for each in common_tokenizers():
        splitting = splitters(each)
        assert splitting is not None
        assert known_ranges(key_of(splitting)), f"not for {splitting}; {RENEW}"
        assert find_unsafe_code_points(each, tmp_path / "cache").ranges
    assert not (tmp_path / "cache").exists()


def test_what_is_known_is_what_trying_finds(
    sharp: tuple[Tokenizer, UnsafeCodePoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the two planes on which texts are; of all of Unicode below."""
    tokenizer, known = sharp
    end = 0x20000
    monkeypatch.setattr(codepoints, "_NUM_CODE_POINTS", end)
    tried = try_all_code_points(tokenizer)
    assert [each for each in known.ranges if each[0] < end] == list(tried.ranges), RENEW


@pytest.mark.soak
@pytest.mark.parametrize("number", range(4))
def test_what_is_known_is_what_trying_all_finds(number: int, tmp_path: Path) -> None:
    tokenizer = list(common_tokenizers())[number]
    assert find_unsafe_code_points(tokenizer, tmp_path) == try_all_code_points(tokenizer), RENEW
