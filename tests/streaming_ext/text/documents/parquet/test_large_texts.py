"""Large texts in Parquet: what a reader keeps of them, and that each row is read once."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.parquet import large_texts
from streaming_ext.text.documents.parquet.parquet import read_documents

LARGE = 2**26


def write(
    path: Path, texts: Sequence[str | None], *, rows: int = 10**6, plain: bool = True
) -> Path:
    """A file of row groups of so many rows."""
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    pq.write_table(table, path, row_group_size=rows, use_dictionary=not plain)
    return path


@pytest.mark.parametrize("plain", [True, False])
def test_nothing_of_a_large_text_is_kept_beside_it(tmp_path: Path, plain: bool) -> None:
    file = write(tmp_path / "x.parquet", ["a", "b" * LARGE, "c"], plain=plain)
    before = pa.total_allocated_bytes()
    seen = []
    for batch in read_documents(file, ReadOptions()):
        size = batch.texts.nbytes
        seen.append(size >= LARGE)
        if size >= LARGE:
            assert pa.total_allocated_bytes() - before < 1.1 * size
        del batch
    assert True in seen
    assert pa.total_allocated_bytes() == before


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each reader goes over again; texts of 1,000 bytes are large."""
    rows: list[int] = []
    behind = large_texts._without_first

    def counted(batches: Iterator[pa.RecordBatch], skip: int) -> Iterator[pa.RecordBatch]:
        rows.append(skip)
        return behind(batches, skip)

    monkeypatch.setattr(large_texts, "_LARGE_TEXT_BYTES", 1000)
    monkeypatch.setattr(large_texts, "_without_first", counted)
    return rows


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("large", [{0}, {4}, {19}, {3, 4, 5}, {2, 9, 10, 17}, set(range(20))])
def test_each_row_is_read_once_and_in_order(
    tmp_path: Path, begun: list[int], rows: int, large: set[int]
) -> None:
    texts = [None if n == 7 else f"{n} " + "x" * (1000 if n in large else 5) for n in range(20)]
    file = write(tmp_path / "x.parquet", texts, rows=rows)
    read, numbers = [], []
    for batch in read_documents(file, ReadOptions(), batch_bytes=1):
        read += batch.texts.to_pylist()
        numbers += batch.rows.tolist()
    assert read == [text for text in texts if text is not None]
    assert numbers == [n for n in range(20) if n != 7]
    assert len(begun) > 1 or large == {19}


def test_rows_are_not_gone_over_again_and_again(tmp_path: Path, begun: list[int]) -> None:
    file = write(tmp_path / "x.parquet", ["x" * 1000] * 100)
    assert sum(len(b.texts) for b in read_documents(file, ReadOptions(), batch_bytes=1)) == 100
    assert begun == list(range(9))


def test_a_row_group_that_is_done_is_not_gone_over_again(tmp_path: Path, begun: list[int]) -> None:
    file = write(tmp_path / "x.parquet", ["a", "x" * 1000] * 20, rows=2)
    assert sum(len(b.texts) for b in read_documents(file, ReadOptions(), batch_bytes=1)) == 40
    assert begun == [0] * 20
