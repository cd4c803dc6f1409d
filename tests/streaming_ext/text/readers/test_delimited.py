"""CSV and TSV as people write them: quoted cells, bad rows, other encodings, large rows."""

import codecs
import csv
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.filters import Filters
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.formats import format_of
from streaming_ext.text.readers import delimited
from tests.streaming_ext.text.reading import SKIP, documents, faults, looked_at, read


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_cells(tmp_path: Path, newline: str, mark: bytes) -> None:
    lines = ["id,text", '1,"a, ""b"""', "2,", '3,""', "", '4,"c\nd"', "5,e f", "6, \"g'"]
    data = mark + newline.join(lines[:-1]).encode()
    expected = [(0, 'a, "b"'), (2, ""), (4, "c\nd"), (5, "e f")]
    assert documents(tmp_path / "x.csv", data) == expected
    assert documents(tmp_path / "x.csv", data + newline.encode()) == expected
    tabs = data.replace(b",", b"\t").replace(b'"a\t ', b'"a, ')
    assert documents(tmp_path / "x.tsv", tabs) == expected


def test_a_header_alone(tmp_path: Path) -> None:
    for data in (b"id,text", b"id,text\n", b"text"):
        assert documents(tmp_path / "x.csv", data) == []


def test_a_column_alone(tmp_path: Path) -> None:
    assert documents(tmp_path / "x.csv", b'text\na\n\n"b\n\nc"\n""\n') == [
        (0, "a"),
        (2, "b\n\nc"),
        (3, ""),
    ]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text(st.sampled_from('a,"\n\r\t é\0'), max_size=9), max_size=20),
    block=st.sampled_from([200, 2**20]),
)
def test_what_python_writes(tmp_path: Path, texts: list[str], block: int) -> None:
    whole = io.StringIO(newline="")
    writer = csv.writer(whole, quoting=csv.QUOTE_ALL)
    writer.writerows([["id", "text"], *enumerate(texts)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "_BLOCK_BYTES", block)
        found = documents(tmp_path / "x.csv", whole.getvalue().encode())
    assert found == list(enumerate(texts))


BAD = b"id,text,n\n1,a,5\n2,b\n3,c,6,7\n4,d\xff,8\n5,e,much\n6,f,9\n7\n"


@pytest.mark.parametrize("blocks", [200, 2**20])
def test_bad_rows_cost_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", blocks)
    path = tmp_path / "x.csv"
    path.write_bytes(BAD)
    options = ReadOptions(on_bad_document="skip", filters=Filters(where="n > 5"), kept=("id",))
    good, bad, count = [], [], 0
    for batch in format_of(path.name).read(path, options):
        good += zip(
            batch.rows.tolist(), batch.texts.to_pylist(), batch.values[0].to_pylist(), strict=True
        )
        bad += batch.bad
        count += batch.num_rows
    assert (good, count) == ([(5, "f", "6")], 7)
    assert faults(bad) == [
        (1, "row 1", "2 cells, expected 3"),
        (2, "row 2", "4 cells, expected 3"),
        (3, "row 3", "no valid UTF-8 at byte 1 of its text"),
        (4, "row 4", "'n' is no double, which --where asks for"),
        (6, "row 6", "1 cells, expected 3"),
    ]
    with pytest.raises(SourceError, match=r"x\.csv: row 1: 2 cells, expected 3\. Correct it.*skip"):
        read(path, ReadOptions())


def test_true_and_false(tmp_path: Path) -> None:
    data = b"ok,text\ntrue,a\nFalse,b\n,c\n"
    for where, left in (("ok", "a"), ("not ok", "b"), ("ok is None", "c")):
        (tmp_path / "x.csv").write_bytes(data)
        options = ReadOptions(filters=Filters(where=where))
        (batch,) = format_of("x.csv").read(tmp_path / "x.csv", options)
        assert batch.texts.to_pylist() == [left]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "Empty CSV file"),
        ("text\na\n".encode("utf-16"), "codec can't decode byte 0xff in position 0"),
        (b'text\n"a', "it ends within a quoted cell: it is cut short"),
        (b'text,n\n1,2\n3,"a\n5,6\n', "it ends within a quoted cell: it is cut short"),
    ],
)
def test_no_table(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(SourceError, match=rf"x\.csv: .*{said}"):
        documents(tmp_path / "x.csv", data, SKIP)


def test_another_encoding_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="row 1: no valid UTF-8 at byte 3 of its text"):
        documents(tmp_path / "x.csv", "text\na\ncafé\n".encode("latin-1"))


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_look_may_end_within_a_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newline: str
) -> None:
    data = newline.join(["text,é", "😀" * 3 + ",1", "é,2", ""]).encode()
    for size in range(len(f"text,é{newline}".encode()), len(data) + 1):
        monkeypatch.setattr(delimited, "LOOK_BYTES", size)
        assert documents(tmp_path / "x.csv", data) == [(0, "😀" * 3), (1, "é")]


def test_a_header_without_the_column(tmp_path: Path) -> None:
    for data, said in (
        (b"id,body\n1,a\n", "has no column 'text'; its columns are id, body"),
        (b"text,text\n1,a\n", "has more than one column 'text'"),
        (b"\ntext\na\n", "has no column 'text'"),  # an empty line is the first line too
    ):
        with pytest.raises(UsageError, match=said):
            documents(tmp_path / "x.csv", data)
        with pytest.raises(UsageError, match=said):
            format_of("x.csv").check(looked_at(tmp_path / "x.csv"), ReadOptions())


def test_a_row_larger_than_any_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", 400)
    data = b"id,text\n" + b"1,a\n" * 50 + b'2,"' + b"b\n" * 150 + b'"\n' + b"3,c\n" * 9
    expected = ["a"] * 50 + ["b\n" * 150] + ["c"] * 9
    assert documents(tmp_path / "x.csv", data) == list(enumerate(expected))
    with pytest.raises(SourceError, match=r"x\.csv: .*damaged from row 50 on .*block size"):
        documents(tmp_path / "x.csv", data.replace(b"b\nb\n", b"b\nb\nb\nb\n"))
