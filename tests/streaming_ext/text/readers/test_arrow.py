"""Columns of Parquet and Arrow files; an Arrow file that is cut or damaged is refused."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.filters import Filters
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents import document_rows
from streaming_ext.text.formats import format_of
from tests.streaming_ext.text.packed import write_arrow
from tests.streaming_ext.text.reading import SKIP, faults, looked_at, read

TEXTS = ["one", None, "", "zwei\n" * 4, None, "\U0001f600 \x00", "one"]
READ = [(row, text) for row, text in enumerate(TEXTS) if text is not None]


def write_stream(path: Path, table: pa.Table) -> None:
    write_arrow(path, table, stream=True)


def write_parquet(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, row_group_size=2)


def write_parquet_plainly(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, use_dictionary=False)


WRITERS: dict[str, Callable[[Path, pa.Table], None]] = {
    "x.arrow": write_arrow,
    "stream.arrow": write_stream,
    "x.parquet": write_parquet,
    "plain.parquet": write_parquet_plainly,
}
EACH_WRITER = pytest.mark.parametrize("name", WRITERS)


@EACH_WRITER
@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
    ids=str,
)
def test_kinds_of_columns(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    kinds = pa.array([*"xxyxxyx"], kind if pa.types.is_string_view(kind) else pa.string())
    texts = pa.array(TEXTS, pa.string()).cast(kind)
    WRITERS[name](tmp_path / name, pa.table({"text": texts, "kind": kinds}))
    for batch_bytes in (5, 2**20):
        assert read(tmp_path / name, ReadOptions(), batch_bytes)[0] == READ
    options = ReadOptions(filters=Filters(where="kind == 'y'"), kept=("kind",))
    batches = list(format_of(name).read(tmp_path / name, options))
    assert [row for batch in batches for row in batch.rows.tolist()] == [2, 5]
    assert {kind for batch in batches for kind in batch.values[0].to_pylist()} == {"y"}


def test_dictionaries_of_views(tmp_path: Path) -> None:
    """Polars writes categories in this way."""
    codes = pa.array(TEXTS, pa.string()).dictionary_encode()
    texts = pa.DictionaryArray.from_arrays(codes.indices, codes.dictionary.cast(pa.string_view()))
    write_arrow(tmp_path / "x.arrow", pa.table({"text": texts}))
    options = ReadOptions(filters=Filters(where="text != 'one'"), kept=("text",))
    assert read(tmp_path / "x.arrow").good == READ
    assert read(tmp_path / "x.arrow", options).good == [(2, ""), (3, TEXTS[3]), (5, TEXTS[5])]


@EACH_WRITER
def test_a_text_that_is_no_utf8_costs_no_other(tmp_path: Path, name: str) -> None:
    texts = pa.array([b"fine", b"\xc3\xa9 \xff", b"x", None, b"\xff"], pa.binary())
    table = pa.table({"text": texts.view(pa.string()), "other": [*"12345"]})
    WRITERS[name](tmp_path / name, table)
    good, bad, rows, *_ = read(tmp_path / name, batch_bytes=4)
    assert good == [(0, "fine"), (2, "x")]
    assert rows == 5
    assert faults(bad) == [
        (1, "row 1", "no valid UTF-8 at byte 3 of its text"),
        (4, "row 4", "no valid UTF-8 at byte 0 of its text"),
    ]
    both = ReadOptions(columns=("other", "text"), separator=" ", on_bad_document="skip")
    assert read(tmp_path / name, both)[0] == [(0, "1 fine"), (2, "3 x"), (3, "4")]
    with pytest.raises(SourceError, match=rf"{name}: row 1: no valid UTF-8 at byte 3"):
        read(tmp_path / name, ReadOptions())


@EACH_WRITER
def test_a_text_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(document_rows, "MAX_TEXT_BYTES", 10)
    WRITERS[name](tmp_path / name, pa.table({"text": ["a", "b" * 11, "c" * 10]}))
    good, bad, *_ = read(tmp_path / name)
    assert [row for row, _ in good] == [0, 2]
    assert faults(bad) == [(1, "row 1", "a text of 11 bytes, at most 10 are read")]


COLUMNS = pa.table(
    {
        "text": pa.array(["a"]),
        "id": pa.array([1]),
        "blob": pa.array([b"b"]),
        "words": pa.array(["a"]).dictionary_encode(),
        "list": pa.array([["a"]]),
        "a.b": pa.array(["dotted"]),
        "meta": pa.array([{"text": "inner"}]),
    }
)


@EACH_WRITER
@pytest.mark.parametrize(
    ("column", "said"),
    [
        *(
            (name, rf"column '{name}' is of type .*Columns of text: text, words, a\.b")
            for name in ("id", "blob", "list")
        ),
        *(
            (name, rf"no column '{name}'.*text, id, blob, words, list, a\.b, meta")
            for name in ("Text", "", "tex", "text.x")
        ),
    ],
)
def test_a_column_that_holds_no_text_is_named(
    tmp_path: Path, name: str, column: str, said: str
) -> None:
    WRITERS[name](tmp_path / name, COLUMNS)
    for good, text in (("text", "a"), ("words", "a"), ("a.b", "dotted"), ("meta.text", "inner")):
        assert read(tmp_path / name, ReadOptions(columns=(good,)))[0] == [(0, text)]
    with pytest.raises(UsageError, match=rf"{name}.*{said}"):
        read(tmp_path / name, ReadOptions(columns=(column,)))


@EACH_WRITER
def test_columns_without_any_text(tmp_path: Path, name: str) -> None:
    options = ReadOptions(columns=("title", "text"))
    for table, said in (
        (
            pa.table({"title": pa.nulls(2), "text": pa.nulls(2)}),
            f"{name} holds no text: every row of 'title' and",
        ),
        (pa.table({"title": [1], "text": ["a"]}), "column 'title' is of type"),
        (pa.table([["a"], ["b"], ["c"]], ["title", "text", "text"]), "more than one column 'text'"),
    ):
        WRITERS[name](tmp_path / name, table)
        with pytest.raises(UsageError, match=said):
            format_of(name).check(looked_at(tmp_path / name), options)


def test_a_damaged_arrow_file_is_refused_whole_or_by_its_span(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    write_arrow(path, pa.table({"text": [f"{row % 3}" * 99 for row in range(30)]}))
    data = path.read_bytes()
    assert [row for row, _ in read(path)[0]] == list(range(30))
    for damaged in (data[:900], data[:-400] + b"\xff" * 300 + data[-100:]):
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match="not a whole arrow file"):
            read(path)
        for span in ((400, 900), (0, len(data))):
            with pytest.raises(SourceError, match=r"not a whole arrow file|damaged from row"):
                list(format_of(path.name).read(path, SKIP, span=span))
    path.write_bytes(data[:900])
    with pytest.raises(SourceError, match=r"not a whole arrow file|damaged from row"):
        format_of(path.name).needed(looked_at(path), SKIP, (0, 900))
