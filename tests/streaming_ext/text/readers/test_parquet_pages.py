"""Pages with checksums are compared with them, whoever wrote them."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.local_bytes import local_bytes
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.readers.parquet_footer import span_of, text_chunks
from streaming_ext.text.readers.parquet_pages import text_is_checked

TEXT = ReadOptions()
WAYS: list[dict[str, Any]] = [
    {},
    {"data_page_version": "2.0", "compression": "zstd"},
    {"use_dictionary": False, "compression": "none"},
    {"compression": "gzip", "data_page_size": 500, "write_statistics": True},
    {"data_page_version": "2.0", "store_decimal_as_integer": True, "data_page_size": 300},
]


def written(path: Path, *, write_page_checksum: bool = True, **way: Any) -> list[tuple[int, int]]:
    """A file of three row groups; where its text lies."""
    rng = random.Random(5)
    texts = [None if rng.random() < 0.1 else rng.randbytes(60).hex() for _ in range(300)]
    table = pa.table({"id": range(300), "text": texts})
    pq.write_table(table, path, row_group_size=100, write_page_checksum=write_page_checksum, **way)
    with local_bytes(path, name="x") as file:
        return [span_of(chunk) for (chunk,) in text_chunks(file, TEXT)[2]]


def is_checked(
    path: Path, options: ReadOptions = TEXT, span: tuple[int, int] | None = None
) -> bool:
    with local_bytes(path, name="x") as file:
        return text_is_checked(file, options, span)


@pytest.mark.parametrize("way", WAYS)
def test_a_flip_in_a_page_is_found(tmp_path: Path, way: dict[str, Any]) -> None:
    path = tmp_path / "x.parquet"
    spans = written(path, **way)
    assert is_checked(path)
    whole = path.read_bytes()
    found = 0
    places = [place for start, end in spans for place in range(start, end, 97)]
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            is_checked(path)
        except SourceError as error:
            assert "x: the page at byte" in str(error)  # noqa: PT017
            found += 1
    assert found > 0.6 * len(places)  # the others lie in headers, which have none
    path.write_bytes(whole[:4] + bytes(spans[0][0] - 4) + whole[spans[0][0] :])
    assert is_checked(path)  # the other column is not here
    path.write_bytes(whole[: spans[1][0]] + bytes(200) + whole[spans[1][0] + 200 :])
    half = spans[0][1] // 2
    assert is_checked(path, span=(0, half))  # a piece that does not hold the damage
    assert not is_checked(path)


def test_without_checksums(tmp_path: Path) -> None:
    written(tmp_path / "x.parquet", write_page_checksum=False)
    assert not is_checked(tmp_path / "x.parquet")
    assert not is_checked(tmp_path / "x.parquet", ReadOptions(columns=("body",)))
    (tmp_path / "y.parquet").write_bytes(b"nothing")
    assert not is_checked(tmp_path / "y.parquet")
