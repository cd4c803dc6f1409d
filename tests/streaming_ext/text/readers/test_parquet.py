"""Documents come out as they stand in the file, whatever the file's shape; damage is named."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.columns import paths_of
from streaming_ext.text.documents.document_rows import DocumentBatch
from streaming_ext.text.readers import parquet as documents
from streaming_ext.text.readers.parquet import Footer, ParquetFormat
from tests.streaming_ext.text.reading import looked_at
from tests.tasks.core.doubles import write_source

MIXED = ["one", None, "", "zwei\n", None, "\U0001f600 \x00", "one"]
MIXED_READ = [(0, "one"), (2, ""), (3, "zwei\n"), (5, "\U0001f600 \x00"), (6, "one")]


def batches(path: Path, batch_bytes: int = 2**20, column: str = "text") -> list[DocumentBatch]:
    return list(ParquetFormat().read(path, ReadOptions(columns=(column,)), batch_bytes=batch_bytes))


def read(path: Path, batch_bytes: int = 2**20, column: str = "text") -> list[tuple[int, str]]:
    """(row, text) of every document."""
    found = []
    for batch in batches(path, batch_bytes, column):
        assert batch.rows.dtype == np.int64
        assert batch.texts.type == pa.large_string()
        assert batch.texts.null_count == 0
        found += zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
    return found


@pytest.mark.parametrize(
    "column",
    [
        pa.array(MIXED, pa.string()),
        pa.array(MIXED, pa.large_string()),
        pa.array(MIXED, pa.string()).dictionary_encode(),
        pa.array(MIXED, pa.large_string()).dictionary_encode(),
    ],
    ids=["string", "large_string", "dictionary", "dictionary of large_string"],
)
@pytest.mark.parametrize("options", [{}, {"row_group_size": 2}, {"use_dictionary": False}])
@pytest.mark.parametrize("batch_bytes", [5, 2**20])
def test_every_kind_of_column(
    tmp_path: Path, column: pa.Array, options: dict[str, Any], batch_bytes: int
) -> None:
    write_source(tmp_path / "x.parquet", column, **options)
    assert read(tmp_path / "x.parquet", batch_bytes) == MIXED_READ


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.none() | st.text(max_size=12), max_size=40),
    batch_bytes=st.integers(1, 200),
    row_group_size=st.integers(1, 50),
    rows_a_batch=st.integers(1, 50),
)
def test_batches_never_change_rows_or_texts(
    tmp_path: Path,
    texts: list[str | None],
    batch_bytes: int,
    row_group_size: int,
    rows_a_batch: int,
) -> None:
    write_source(tmp_path / "x.parquet", texts, row_group_size=row_group_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_rows_a_batch", lambda *_: rows_a_batch)
        found = batches(tmp_path / "x.parquet", batch_bytes)
    got = [
        pair
        for batch in found
        for pair in zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
    ]
    assert got == [(row, text) for row, text in enumerate(texts) if text is not None]
    assert sum(batch.num_rows for batch in found) == len(texts)
    for batch in found:
        sizes = [len(text.encode()) for text in batch.texts.to_pylist()]
        assert sum(sizes) <= batch_bytes or len(sizes) == 1


@pytest.mark.parametrize(
    ("batch_bytes", "expected"),
    [
        (1, [["aa"], ["bb"], [""], ["cccc"], ["d"]]),
        (3, [["aa"], ["bb", ""], ["cccc"], ["d"]]),
        (4, [["aa", "bb", ""], ["cccc"], ["d"]]),
        (8, [["aa", "bb", "", "cccc"], ["d"]]),
        (9, [["aa", "bb", "", "cccc", "d"]]),
    ],
)
def test_arrow_batches_are_cut_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int, expected: list[list[str]]
) -> None:
    monkeypatch.setattr(documents, "_rows_a_batch", lambda *_: 100)
    write_source(tmp_path / "x.parquet", ["aa", "bb", "", "cccc", "d"])
    found = [batch.texts.to_pylist() for batch in batches(tmp_path / "x.parquet", batch_bytes)]
    assert found == expected


def test_rows_a_batch_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_BATCH_ROWS", 3)
    write_source(tmp_path / "x.parquet", [""] * 10)
    assert [batch.num_rows for batch in batches(tmp_path / "x.parquet")] == [3, 3, 3, 1]


def test_a_span_is_whole_row_groups(tmp_path: Path) -> None:
    texts = ["a" * 100, "b" * 100, "c", "d", "e" * 200, "f" * 50]
    write_source(tmp_path / "x.parquet", texts, row_group_size=2)
    size = (tmp_path / "x.parquet").stat().st_size
    footer = Footer(looked_at(tmp_path / "x.parquet"))
    starts = {
        footer.groups_of((0, end))[0][-1]: end for end in range(size, 0, -1)
    }  # row group -> the shortest span from 0 on that ends with it

    def rows(first: int, end: int) -> list[tuple[int, str]]:
        found = list(ParquetFormat().read(tmp_path / "x.parquet", ReadOptions(), span=(first, end)))
        assert not found or found[-1].fraction == 1.0
        return [
            pair
            for batch in found
            for pair in zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
        ]

    assert rows(0, size) == list(enumerate(texts))
    assert [rows(starts[group] - 1, starts[group]) for group in range(3)] == [
        [(0, texts[0]), (1, texts[1])], [(0, "c"), (1, "d")], [(0, texts[4]), (1, texts[5])]
    ]  # fmt: skip
    assert rows(starts[1], starts[2] - 1) == []
    assert rows(starts[0], size) == list(enumerate(texts[2:]))
    assert starts[0] == 1
    assert starts[1] < starts[2] < size


def test_other_columns_are_left_alone(tmp_path: Path) -> None:
    table = pa.table({
        "text.raw": ["wrong"], "id": [7], "meta": [{"text": "wrong"}], "text": ["right"],
        "a.b": ["dotted"],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet") == [(0, "right")]
    assert read(tmp_path / "x.parquet", column="a.b") == [(0, "dotted")]


def find_column(schema: pa.Schema, column: str) -> None:
    paths_of(schema, ReadOptions(columns=(column,)), where="x.parquet")


class TestFindColumn:
    SCHEMA = pa.schema(
        [("text", pa.string()), ("id", pa.int64()), ("blob", pa.binary()),
         ("words", pa.dictionary(pa.int32(), pa.string())), ("list", pa.list_(pa.string()))]
    )  # fmt: skip

    @pytest.mark.parametrize("column", ["text", "words"])
    def test_good(self, column: str) -> None:
        find_column(self.SCHEMA, column)

    @pytest.mark.parametrize("column", ["id", "blob", "list"])
    def test_another_type(self, column: str) -> None:
        with pytest.raises(
            UsageError, match=rf"^x.parquet: column '{column}' is of type"
        ) as caught:
            find_column(self.SCHEMA, column)
        assert "Columns of text: text, words." in str(caught.value)

    @pytest.mark.parametrize("column", ["Text", "", "tex", "text.x"])
    def test_missing(self, column: str) -> None:
        with pytest.raises(UsageError, match=f"no column '{column}'.*text, id, blob, words, list"):
            find_column(self.SCHEMA, column)

    def test_twice(self) -> None:
        schema = pa.schema([("text", pa.string()), ("text", pa.string())])
        with pytest.raises(UsageError, match="has more than one column 'text'"):
            find_column(schema, "text")

    def test_no_text_at_all(self) -> None:
        with pytest.raises(UsageError, match="Columns of text: none"):
            find_column(pa.schema([("id", pa.int64())]), "id")

    def test_the_reader_checks_too(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"n": [1]}), tmp_path / "x.parquet")
        with pytest.raises(UsageError, match=r"x\.parquet has no column 'text'"):
            read(tmp_path / "x.parquet")


class TestDamage:
    """Every damage is a SourceError that names the file; inside the data also the row."""

    TEXTS: Sequence[str] = [
        " ".join(random.Random(row).choices("abcdefghijkl", k=300)) for row in range(60)
    ]

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """Six row groups of ten rows, with checksums on their pages."""
        write_source(
            tmp_path / "x.parquet", pa.array(self.TEXTS), row_group_size=10,
            compression="none", use_dictionary=False, write_page_checksum=True,
        )  # fmt: skip
        return tmp_path / "x.parquet"

    @pytest.mark.parametrize("content", [b"", b"no parquet at all", b"PAR1", b"PAR1PAR1"])
    def test_no_parquet(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.parquet").write_bytes(content)
        with pytest.raises(SourceError, match=r"x\.parquet: not a whole Parquet file \([^\n]*\)"):
            read(tmp_path / "x.parquet")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="cannot be read: is a directory"):
            read(tmp_path)

    def test_truncated_anywhere(self, file: Path) -> None:
        whole = file.read_bytes()
        for length in {*range(0, len(whole), 997), len(whole) - 1, len(whole) - 8}:
            file.write_bytes(whole[:length])
            with pytest.raises(SourceError, match="not a whole Parquet file"):
                read(file)

    @pytest.mark.parametrize("group", [0, 2, 5])
    def test_a_flipped_byte_is_named_by_its_row(self, file: Path, group: int) -> None:
        chunk = pq.ParquetFile(file).metadata.row_group(group).column(0)
        data = bytearray(file.read_bytes())
        data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 0x40
        file.write_bytes(data)
        found = []
        with pytest.raises(SourceError, match=r"damaged from row \d+ on \(") as caught:
            for batch in ParquetFormat().read(file, ReadOptions(), batch_bytes=1000):
                found += batch.texts.to_pylist()
        row = int(str(caught.value).split("row ")[1].split()[0])
        # Arrow's batches begin at row groups here or within: never after the damage.
        assert len(found) <= row <= group * 10 + 10
        assert found == self.TEXTS[: len(found)]
        assert len(found) >= group * 10 - 10
        assert "\n" not in str(caught.value)

    def test_a_footer_that_promises_more_rows(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Short(pq.ParquetFile):  # type: ignore[misc]
            def iter_batches(self, *arguments: Any, **options: Any) -> Any:
                found = list(super().iter_batches(*arguments, **options))
                return iter(found[:-1])

        monkeypatch.setattr(pq, "ParquetFile", Short)
        with pytest.raises(SourceError, match=r"\d+ rows could be read, its footer promises 60\."):
            batches(file, 1000)

    @settings(
        max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(data=st.data())
    def test_any_damage_is_noticed_or_harmless(self, file: Path, data: st.DataObject) -> None:
        whole = file.with_suffix(".whole")
        if not whole.exists():
            whole.write_bytes(file.read_bytes())
        changed = bytearray(whole.read_bytes())
        position = data.draw(st.integers(4, len(changed) - 1))
        changed[position] ^= data.draw(st.integers(1, 255))
        file.write_bytes(changed)
        try:
            found = read(file)
        except (SourceError, UsageError):
            return
        assert [text for _, text in found] == self.TEXTS
