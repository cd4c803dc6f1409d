"""A document that cannot be read fails its file, or is left out and told: in every format."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents import document_rows, objects
from streaming_ext.text.readers import json_files
from tests.streaming_ext.text.packed import pack, write_documents
from tests.streaming_ext.text.reading import faults, read

GOOD = b'{"text": "good"}\n'


LINES = [
    b'{"text": "a"}', b'{"text": "a', b'{"text": 5}', b'{"text": "x\xff"}', b"", b"[1]",
    b'{"text": "b"}',
]  # fmt: skip
BAD_LINES = [
    (1, "line 2, byte 23", "no valid JSON (Unterminated string starting at)"),
    (2, "line 3, byte 26", "'text' is of type number, expected string"),
    (3, "line 4, byte 49", "no valid UTF-8"),
    (5, "line 6, byte 54", "a value of type array, expected object"),
]


@pytest.mark.parametrize("batch_bytes", [1, 30, 2**20])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_lines(tmp_path: Path, batch_bytes: int, codec: str) -> None:
    path = tmp_path / ("x.jsonl" if codec == "none" else "x.jsonl.gz")
    pack(b"\n".join(LINES) + b"\n", path, codec)
    good, bad, rows = read(path, batch_bytes=batch_bytes)
    assert good == [(0, "a"), (6, "b")]
    assert rows == 7
    assert faults(bad) == BAD_LINES
    with pytest.raises(SourceError, match=r"x\.jsonl.*: line 2, byte 23: no valid JSON.*skip"):
        read(path, ReadOptions())


def test_a_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (json_files, objects, document_rows):
        monkeypatch.setattr(module, "MAX_TEXT_BYTES", 1000)
    long = b'{"text": "' + b"a" * 5000 + b'"}\n'
    path = tmp_path / "x.jsonl"
    for batch_bytes in (100, 700, 10_000):
        path.write_bytes(GOOD * 2 + long + GOOD + long + long + GOOD)
        good, bad, rows = read(path, batch_bytes=batch_bytes)
        assert [row for row, _ in good] == [0, 1, 3, 6]
        assert [(one.row, one.location) for one in bad] == [
            (2, "line 3, byte 34"), (4, f"line 5, byte {51 + len(long)}"),
            (5, f"line 6, byte {51 + 2 * len(long)}"),
        ]  # fmt: skip
        assert rows == 7
        path.write_bytes(GOOD + long[:-1])  # the last line, without an end
        assert len(read(path, batch_bytes=batch_bytes)[1]) == 1
        with pytest.raises(SourceError, match=r"line 2, byte 17: longer than"):
            read(path, ReadOptions(), batch_bytes)


@pytest.mark.parametrize("chunk", [1, 7, 2**20])
def test_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(json_files, "_CHUNK_BYTES", chunk)
    path = tmp_path / "x.json"
    data = b'[{"text": "a"}, 5, {"text": "\xc3\xa9 \xff\xfe"}, {"text": {}}, {"text": "\xc3\xa9"}]'
    path.write_bytes(data)
    good, bad, rows = read(path)
    assert good == [(0, "a"), (4, "é")]
    assert rows == 5
    assert faults(bad) == [
        (1, "document 2, byte 16", "a value of type number, expected object"),
        (2, f"document 3, byte {data.index(0xFF)}", "no valid UTF-8"),
        (
            3,
            f"document 4, byte {data.index(b'{}') - 9}",
            "'text' is of type object, expected string",
        ),
    ]
    with pytest.raises(SourceError, match=r"x\.json: document 2, byte 16: a value of type number"):
        read(path, ReadOptions())


def broken_table() -> pa.Table:
    texts = pa.array([b"fine", b"\xc3\xa9 \xff", b"x", None, b"\xff"], pa.binary()).view(
        pa.string()
    )
    other = pa.array(["1", "2", "3", "4", "5"])
    return pa.table({"text": texts, "other": other})


def write_arrow(path: Path) -> None:
    table = broken_table()
    with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_stream(raw, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("suffix", "write"),
    [("parquet", lambda path: pq.write_table(broken_table(), path)), ("arrow", write_arrow)],
)
def test_tables(tmp_path: Path, suffix: str, write: Callable[[Path], None]) -> None:
    path = tmp_path / f"x.{suffix}"
    write(path)
    good, bad, rows = read(path, batch_bytes=4)
    assert good == [(0, "fine"), (2, "x")]
    assert rows == 5
    assert faults(bad) == [
        (1, "row 1", "no valid UTF-8 at byte 3 of its text"),
        (4, "row 4", "no valid UTF-8 at byte 0 of its text"),
    ]
    both = ReadOptions(columns=("other", "text"), separator=" ", on_bad_document="skip")
    assert read(path, both)[0] == [(0, "1 fine"), (2, "3 x"), (3, "4")]
    with pytest.raises(SourceError, match=rf"x\.{suffix}: row 1: no valid UTF-8 at byte 3"):
        read(path, ReadOptions())


def test_a_text_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_rows, "MAX_TEXT_BYTES", 10)
    pq.write_table(pa.table({"text": ["a", "b" * 11, "c" * 10]}), tmp_path / "x.parquet")
    good, bad, _ = read(tmp_path / "x.parquet")
    assert [row for row, _ in good] == [0, 2]
    assert faults(bad) == [(1, "row 1", "a text of 11 bytes, at most 10 are read")]


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".json", ".parquet", ".arrow"])
def test_what_makes_the_rest_unreadable_fails_the_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    documents = [f"{number} " * 50 for number in range(300)]
    rows = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in documents)
    if suffix == ".json":
        path.write_bytes(b"[" + rows.replace(b"\n", b",")[:-1] + b"]")
    elif suffix.startswith(".jsonl"):
        pack(rows, path, "gzip" if suffix == ".jsonl.gz" else "zstd")
    else:
        write_documents(path, documents)
    assert len(read(path)[0]) == 300
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(SourceError, match=rf"x{suffix}"):
        read(path)
