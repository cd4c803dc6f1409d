"""Parquet files of ids, read by Arrow: lists of all lengths, cut into pages and groups anywhere."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.exports.containers import parquet
from tasks.core.exports.containers.parquet import MAGIC, IdLists

LENGTHS = {
    "one each": [1] * 100,
    "short": [1, 2, 3, 1, 7, 8, 9, 64, 1],
    "long": [1, 126, 127, 128, 129, 20_000, 1],
    "one": [40_000],
    "longer than a page": [5, 1_100_000, 3],
}


def file_of(groups: list[list[int]], dtype: str = "<u2") -> bytes:
    """A file of groups of lists of these lengths, and the ids 0, 1, 2 ... in each group."""
    lists, parts = IdLists(), [MAGIC]
    for lengths in groups:
        ids = np.arange(sum(lengths)).astype(dtype)
        parts += [
            bytes(memoryview(some).cast("B")) for some in lists.group(ids, np.cumsum(lengths))
        ]
    return b"".join([*parts, lists.end()])


def expected(groups: list[list[int]]) -> list[list[int]]:
    """The lists of such a file."""
    return [
        list(range(end - length, end))
        for lengths in groups
        for length, end in zip(lengths, np.cumsum(lengths).tolist(), strict=True)
    ]


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("page", [1, 7, 8, 100, 2**14, 2**18])
@pytest.mark.parametrize("cut", [False, True], ids=["lists whole", "lists cut"])
def test_arrow_reads_it(
    lengths: list[int], page: int, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sum(lengths) > 300 * page:
        pytest.skip("as many pages say no more")
    monkeypatch.setattr(parquet, "_PAGE_IDS", page)
    if cut:
        monkeypatch.setattr(parquet, "_LONGEST_PAGE", page)
    groups = [lengths, lengths[::-1], [3]]
    dtype = "<u2" if sum(lengths) <= 2**16 else "<u4"
    file = pq.ParquetFile(io.BytesIO(file_of(groups, dtype)))
    assert file.schema_arrow.field(0).type == pa.list_(pa.field("element", pa.int32()))
    assert file.metadata.num_rows == sum(map(len, groups))
    assert file.read()["input_ids"].to_pylist() == expected(groups)
    for number, held in enumerate(groups):
        group = file.metadata.row_group(number)
        assert (group.num_rows, group.column(0).num_values) == (len(held), sum(held))
        assert file.read_row_group(number)["input_ids"].to_pylist() == expected([held])


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_a_list_lies_in_one_page(lengths: list[int]) -> None:
    """As fastparquet and others want it; pages are a mebibyte where lists are shorter."""
    ends = np.cumsum(lengths * 3)
    pages = list(parquet._pages(ends))
    assert [pages[0][0], *(end for _, end in pages)] == [
        0,
        *(begin for begin, _ in pages[1:]),
        ends[-1],
    ]
    assert {end for _, end in pages} <= set(ends.tolist())
    assert all(end - begin <= max(2**18, *lengths) for begin, end in pages)


def test_arrow_would_write_nothing_else_for_a_reader() -> None:
    groups = [LENGTHS["long"], LENGTHS["short"]]
    ours = pq.ParquetFile(io.BytesIO(file_of(groups)))
    out = io.BytesIO()
    table = pa.table({"input_ids": pa.array(expected(groups), pa.list_(pa.int32()))})
    pq.write_table(table, out, compression="none", use_dictionary=False)
    theirs = pq.ParquetFile(out)
    assert ours.schema.equals(theirs.schema)
    kept = "physical_type", "path_in_schema", "compression", "encodings"
    one, other = (file.metadata.row_group(0).column(0) for file in (ours, theirs))
    assert [getattr(one, name) for name in kept] == [getattr(other, name) for name in kept]


def test_ids_of_32_bits() -> None:
    data = file_of([[1, 70_000]], "<u4")
    assert pq.read_table(io.BytesIO(data))["input_ids"].to_pylist() == expected([[1, 70_000]])


def test_a_file_without_lists() -> None:
    assert pq.read_table(io.BytesIO(file_of([]))).num_rows == 0


@pytest.mark.parametrize("length", [1, 2, 10, 100, 1000, 100_000])
def test_what_stands_beside_the_ids_is_little(length: int) -> None:
    """A bit an id at most, and a few bytes a list where lists are long."""
    count = 2**18 // length
    beside = len(file_of([[length] * count])) - 4 * count * length
    assert beside < min(count * length // 8, 8 * count) + 500
