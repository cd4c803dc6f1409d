"""CBOR of any kind: sizes in it are not trusted, and a bad item does not affect the others."""

from pathlib import Path

import cbor2
import pytest

from streaming_ext.base.errors import SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.readers import cbor
from tests.streaming_ext.text.reading import SKIP, documents, faults, read

A, B = cbor2.dumps({"text": "a", "n": [1, {"x": None}]}), cbor2.dumps({"text": "b"})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (A + B, [(0, "a"), (1, "b")]),
        (b"\x82" + A + B, [(0, "a"), (1, "b")]),
        (b"\x9f" + A + B + b"\xff", [(0, "a"), (1, "b")]),
        (b"\xd9\xd9\xf7" + A + B, [(0, "a"), (1, "b")]),
        (b"\x80", []),
        (b"\xbf\x64text\x7f\x61a\x62bc\xff\xff" + B, [(0, "abc"), (1, "b")]),
        (b"\xa2\x64text\x61a\x62at\xc0\x63bad" + B, [(0, "a"), (1, "b")]),  # an invalid date
        (b"\xa2\x64text\x61a\x01\xfb" + bytes(8) + B, [(0, "a"), (1, "b")]),
    ],
)
def test_forms(tmp_path: Path, data: bytes, expected: list[tuple[int, str]]) -> None:
    assert documents(tmp_path / "x.cbor", data) == expected


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (b"\xa1\x64text\x62\xff\xff", "'text' holds half of a surrogate pair"),
        (b"\xa1\x64text\x05", "'text' is of type number, expected string"),
        (b"\x61a", "a value of type string, expected object"),
        (b"\x82\x01\x02", "a value of type array, expected object"),
    ],
)
def test_a_bad_item_costs_no_other(tmp_path: Path, item: bytes, reason: str) -> None:
    path = tmp_path / "x.cbor"
    path.write_bytes(A + item + B)
    good, bad, *_ = read(path)
    assert good == [(0, "a"), (2, "b")]
    assert [(row, place) for row, place, _ in faults(bad)] == [(1, "document 2")]
    assert bad[0].reason.startswith(reason)
    with pytest.raises(SourceError, match=rf"x\.cbor: document 2: {reason}"):
        read(path, ReadOptions())


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (b"\x7b" + b"\x0f" * 8 + b"abc", "premature end"),
        (b"\x9b" + b"\x0f" * 8 + b"\x01", "premature end"),
        (b"\xa1\x64te", "premature end"),
        (b"\x1c", "error decoding unsigned integer"),
        (b"\x81" * (2**20 + 1), "maximum container nesting depth"),
        (b"\xbf\x64text" + b"\x9f" * 401 + b"\xff" * 402, "maximum container nesting"),
    ],
)
def test_what_makes_the_rest_unreadable(tmp_path: Path, end: bytes, said: str) -> None:
    for options in (ReadOptions(), SKIP):
        with pytest.raises(SourceError, match=rf"cut short after document 1 \({said}"):
            documents(tmp_path / "x.cbor", A + end, options)
        with pytest.raises(SourceError, match="more bytes follow the end of the array"):
            documents(tmp_path / "x.cbor", b"\x81" + A + end, options)


def test_tags_are_left_out(tmp_path: Path) -> None:
    tags = [
        *({*range(300)} - {25, 29}),
        *(2**power for power in range(9, 64)),
        43000,
        55799,
        2**64 - 1,
    ]
    tagged = cbor2.dumps({"more": [cbor2.CBORTag(tag, 7) for tag in tags], "text": "x" * 9000})
    dates = [
        b"\xa1\x64text" + cbor2.dumps(cbor2.CBORTag(tag, "x" * 9000)) for tag in (0, 6, 32, 55799)
    ]
    found = documents(tmp_path / "x.cbor", tagged + b"".join(dates))
    assert found == [(row, "x" * 9000) for row in range(5)]


@pytest.mark.parametrize("is_array", [True, False])
def test_references_are_followed(tmp_path: Path, is_array: bool) -> None:
    """A writer may replace a text or map that repeats by a reference; also the name of a field."""
    meta = {"url": "some url"}
    items = [{"some text": "a text", "meta": meta, "more": [meta, "a text"]}] * 2

    def packed(value: object) -> bytes:
        return cbor2.dumps(value, value_sharing=True, string_referencing=True)

    data = packed(items) if is_array else b"".join(map(packed, items))
    assert data.count(b"some text") == (1 if is_array else 2)
    options = ReadOptions(columns=("some text", "meta.url"), separator=" ")
    expected = [(0, "a text some url"), (1, "a text some url")]
    assert documents(tmp_path / "x.cbor", data, options) == expected


@pytest.mark.parametrize("depth", [399, 400])
def test_as_deep_as_is_read(tmp_path: Path, depth: int) -> None:
    inside = b"\x81" * (depth - 1) + b"\x01"
    path = tmp_path / "x.cbor"
    path.write_bytes(A + b"\xa2\x64text\x61c\x61n" + inside + B)
    assert documents(path, path.read_bytes()) == [(0, "a"), (1, "c"), (2, "b")]


def test_an_item_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cbor, "MAX_ITEM_BYTES", 1000)
    monkeypatch.setattr(cbor, "_BUFFER_BYTES", 300)
    path = tmp_path / "x.cbor"
    for long in ({"text": "x" * 5000, "more": "y"}, {"text": "z", "more": list(range(3000))}):
        path.write_bytes(A + cbor2.dumps(long) + B)
        with pytest.raises(SourceError, match=r"x\.cbor: a document of too many bytes"):
            read(path)
