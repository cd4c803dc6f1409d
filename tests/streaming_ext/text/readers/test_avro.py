"""Avro files of any kind: what cannot be read ends in an error."""

import io
from pathlib import Path
from typing import Any

import fastavro
import pytest

from streaming_ext.base.errors import SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.readers import avro as module
from tests.streaming_ext.text.reading import SKIP, faults, read

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Document",
    "fields": [
        {"name": "text", "type": ["null", "string"]},
        {"name": "score", "type": ["null", "double"], "default": None},
        {"name": "data", "type": ["null", "bytes"], "default": None},
    ],
}


def avro(rows: list[dict[str, Any]], schema: dict[str, Any] = SCHEMA, codec: str = "null") -> bytes:
    whole = io.BytesIO()
    fastavro.writer(whole, schema, rows, codec=codec, sync_interval=200)
    return whole.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy", "zstandard"])
def test_codecs_of_blocks(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "x.avro"
    path.write_bytes(avro([{"text": f"{row} é"} for row in range(50)], codec=codec))
    assert read(path, ReadOptions())[0] == [(row, f"{row} é") for row in range(50)]


def test_what_is_bad_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "x.avro"
    data = avro([{"text": "one", "score": 1.0}, {"text": "BAD!"}, {"text": None}, {"text": "four"}])
    path.write_bytes(data.replace(b"BAD!", b"\xff\xfe\xc3\x28"))
    good, bad, rows, *_ = read(path, SKIP)
    assert (good, rows) == ([(0, "one"), (3, "four")], 4)
    (found,) = faults(bad)
    assert found[0] == 1
    assert found[1].startswith("document 2 of the block at byte ")
    with pytest.raises(SourceError, match="document 2 of the block .*half of a surrogate pair"):
        read(path, ReadOptions())
    with pytest.raises(SourceError, match="'score' is of type number, expected string"):
        read(path, ReadOptions(columns=("score",)))


@pytest.mark.parametrize("content", [b"", b"Obj\x01", b"no avro at all", b"Obj\x01" + b"\xff" * 90])
def test_no_avro(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.avro"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"x\.avro: not a whole avro file \("):
        read(path)


def test_a_schema_without_end_is_refused(tmp_path: Path) -> None:
    again = {"name": "next", "type": ["null", "Document"], "default": None}
    schema = {**SCHEMA, "fields": [SCHEMA["fields"][0], again]}
    path = tmp_path / "x.avro"
    path.write_bytes(avro([{"text": "a", "next": {"text": "b", "next": None}}], schema))
    with pytest.raises(SourceError, match="a schema that refers to itself"):
        read(path)


def test_a_block_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READ_BYTES", 100)
    monkeypatch.setattr(module, "MAX_ITEM_BYTES", 5000)
    path = tmp_path / "x.avro"
    path.write_bytes(avro([{"text": "a"}, {"text": "b" * 9000}]))
    with pytest.raises(SourceError, match=r"x\.avro: a document of too many bytes"):
        read(path)
