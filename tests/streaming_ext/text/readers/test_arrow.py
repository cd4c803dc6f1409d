"""Arrow files as others leave them: what is cut or no text is named, never passed as whole."""

from pathlib import Path

import pyarrow as pa
import pytest

from streaming_ext.base.errors import SourceError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.listing import list_sources
from streaming_ext.text.readers.arrow import ArrowFormat

TEXT = ReadOptions()


def write(path: Path, column: pa.Array, rows: int = 4) -> Path:
    table = pa.table({"text": column, "id": range(len(column))})
    with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_stream(raw, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def read(path: Path) -> list[tuple[int, str]]:
    return [
        pair
        for batch in ArrowFormat().read(path, TEXT, batch_bytes=5)
        for pair in zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
    ]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_kinds_of_columns(tmp_path: Path, kind: pa.DataType) -> None:
    texts = ["a", None, "", "bcd", "efghijk", "a", None]
    path = write(tmp_path / "x.arrow", pa.array(texts, pa.string()).cast(kind))
    assert read(path) == [(row, text) for row, text in enumerate(texts) if text is not None]


def test_a_stream_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", pa.array(list("abcdefghijkl")))
    whole = path.read_bytes()
    assert len(read(path)) == 12
    for length in range(0, len(whole), 8):  # messages are aligned to 8 bytes
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError, match=r"x\.arrow: not a whole arrow file"):
            read(path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    table = pa.table({"text": pa.array([f"{row % 3}" * 99 for row in range(30)])})
    with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_file(raw, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    data = path.read_bytes()
    assert [row for row, _ in read(path)] == list(range(30))
    for damaged in (data[:900], data[:-400] + b"\xff" * 300 + data[-100:]):
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match=r"not a whole arrow file"):
            read(path)


def test_a_saved_dataset(tmp_path: Path) -> None:
    for name in ("data-00000-of-00002.arrow", "data-00001-of-00002.arrow", "cache-1f.arrow"):
        write(tmp_path / name, pa.array(["a"]))
    (tmp_path / "state.json").write_text("{}")
    assert [source.name for source in list_sources([str(tmp_path)])] == [
        "data-00000-of-00002.arrow", "data-00001-of-00002.arrow"
    ]  # fmt: skip
