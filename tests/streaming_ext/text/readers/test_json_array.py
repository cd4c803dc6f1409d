"""A JSON array as one file: it is read in chunks of any size, and errors name what is bad."""

import json
from pathlib import Path

import pytest

from streaming_ext.base.errors import SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents import document_rows
from streaming_ext.text.readers import json_files
from streaming_ext.text.readers.json_files import JsonFormat
from tests.streaming_ext.text.reading import documents, faults, read

UTF8_SAYS = "'utf-8' codec can't decode byte 0xff in position 13: invalid start byte"


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 2**20])
def test_chunks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(json_files, "_CHUNK_BYTES", chunk)
    values = [
        {"text": "\u00e9\U0001f600" * row, "n": [1.5, {"x": -row}, True, None]} for row in range(30)
    ]
    expected = [(row, value["text"]) for row, value in enumerate(values)]
    for options in ({}, {"indent": 2}, {"ensure_ascii": False}, {"separators": (",", ":")}):
        data = json.dumps(values, **options).encode()  # type: ignore[arg-type]
        assert documents(tmp_path / "x.json", data, batch_bytes=50) == expected
        assert (
            documents(tmp_path / "x.json", b"\xef\xbb\xbf \n" + data + b"\n", batch_bytes=50)
            == expected
        )


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'[{"text": "a"}', "after document 1 (expected ',' or ']' after a value"),
        (b'[{"text": "a"} {"text": "b"}]', "(expected ',' or ']' after a value"),
        (b'[{"text": "a"}, {"text": "b', "(Unterminated string"),
        (b'[{"text": "a"}, ]', "(Expecting value"),
        (b'[{"text": "a"}, 5]', "document 2: a value of type number, expected object"),
        (b'[{"text": "\\ud800"}]', "document 1: 'text' holds half of a surrogate pair"),
        (b'[{"text": "a"}]\n[]', "(more text follows the end of the array"),
        (b"[", "not a whole json file (Expecting value"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 2**20])
def test_what_is_bad_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    data: bytes,
    problem: str,
    chunk: int,
) -> None:
    monkeypatch.setattr(json_files, "_CHUNK_BYTES", chunk)
    with pytest.raises(SourceError) as caught:
        documents(tmp_path / "x.json", data, batch_bytes=50)
    assert problem in str(caught.value)


@pytest.mark.parametrize("chunk", [1, 7, 2**20])
def test_a_value_that_is_wrong_costs_no_other_and_a_syntax_error_ends_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(json_files, "_CHUNK_BYTES", chunk)
    path, deep = tmp_path / "x.json", b"[" * 401 + b"]" * 401
    data = b'[{"text": "a"}, 5, {"text": "\xc3\xa9 \xff\xfe"}, {"text": {}}, {"text": "\\ud800"}, '
    data += deep + b', {"text": "\xc3\xa9"}'
    path.write_bytes(data + b"]")
    good, bad, rows, *_ = read(path)
    assert good == [(0, "a"), (6, "é")]
    assert rows == 7
    *of_values, (row, where, _) = faults(bad)
    assert of_values == [
        (1, "document 2", "a value of type number, expected object"),
        (2, "document 3", f"no valid JSON ({UTF8_SAYS})"),
        (3, "document 4", "'text' is of type object, expected string"),
        (4, "document 5", "'text' holds half of a surrogate pair, no character"),
    ]
    assert (row, where) == (5, "document 6")
    with pytest.raises(SourceError, match=r"x\.json: document 2: a value of type number"):
        read(path, ReadOptions())
    path.write_bytes(data + b', {"text" 5}, {"text": "d"}]')
    with pytest.raises(SourceError, match=r"after document 7 \(Expecting"):
        read(path)


def test_a_value_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_rows, "MAX_TEXT_BYTES", 1000)
    monkeypatch.setattr(json_files, "_CHUNK_BYTES", 100)
    path = tmp_path / "x.json"

    def written(count: int) -> None:
        long = json.dumps({"text": 'x"\\' * count, "more": [1, {"y": "]"}]})
        path.write_text(f'[{{"text": "a"}}, {long}, {{"text": "b"}}, {long}]')

    written(500)
    (batch,) = JsonFormat().read(path, ReadOptions(on_bad_document="skip"))
    assert (batch.texts.to_pylist(), batch.num_rows) == (["a", "b"], 4)
    assert [(bad.row, bad.location) for bad in batch.bad] == [(1, "row 1"), (3, "row 3")]
    with pytest.raises(SourceError, match=r"x\.json: row 1: a text of 1500 bytes"):
        list(JsonFormat().read(path, ReadOptions()))
    monkeypatch.setattr(json_files, "MAX_ITEM_BYTES", 1000)
    with pytest.raises(SourceError, match=r"x\.json: .*a value longer than 1000"):
        list(JsonFormat().read(path, ReadOptions(on_bad_document="skip")))
