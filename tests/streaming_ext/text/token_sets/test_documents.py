"""Documents of token sets, cut by end-of-text ids and by formats, over spans and files."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.base.arrays import ceil_div
from streaming_ext.base.errors import SourceError
from streaming_ext.format.schema import content_hash
from streaming_ext.format.spec import ReadOptions, TokenSetName
from streaming_ext.text.documents.files import LocalBytes
from streaming_ext.text.fetch import identify
from streaming_ext.text.formats import format_of
from streaming_ext.text.sources import SourceFile, by_numbers
from streaming_ext.training.stock import streaming
from tests.streaming_ext.text.token_sets.writing import (
    EOT,
    Documents,
    options,
    read,
    write_llmc,
    write_mds,
    write_megatron,
)


def by_hand(ids: list[int], starts: list[int]) -> list[tuple[int, list[int]]]:
    """Return position and ids of each document of a stream, one id after another."""
    found: list[tuple[int, list[int]]] = []
    fresh = True
    for position, token in enumerate(ids):
        fresh = fresh or position in starts
        if token != EOT and fresh:
            found.append((position, []))
        if token != EOT:
            found[-1][1].append(token)
        fresh = token == EOT
    return found


some_ids = st.lists(st.sampled_from([1, 2, 3, EOT]), min_size=1, max_size=40)


@settings(max_examples=20, deadline=None)
@given(ids=some_ids, cut=st.data())
def test_documents_of_spans_of_files(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], cut: st.DataObject
) -> None:
    """A document belongs, complete, to the span of the file in which it begins."""
    folder = tmp_path_factory.mktemp("set")
    if EOT not in ids:
        ids[0] = EOT
    size = cut.draw(st.integers(1, len(ids)))
    files = [ids[at : at + size] for at in range(0, len(ids), size)]
    expected = by_hand(ids, [])
    for number, held in enumerate(files):
        write_llmc(folder / f"x_{number:03}.bin", held)
    for number in range(len(files)):
        path = folder / f"x_{number:03}.bin"
        end = path.stat().st_size
        cuts = sorted({0, end, *cut.draw(st.lists(st.integers(0, end), max_size=3))})
        for span in pairwise(cuts):
            first, last = (
                max(0, ceil_div(position - 1024, 2)) + number * size for position in span
            )
            own = [found for position, found in expected if first <= position < last]
            assert read(path, options("llmc"), span) == own
            check_needed(path, options("llmc"), span, own)


@settings(max_examples=20, deadline=None)
@given(ids=some_ids, cut=st.data())
def test_documents_that_the_format_marks(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], cut: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("set")
    inner = cut.draw(st.lists(st.integers(1, max(1, len(ids) - 1)), max_size=4))
    starts = sorted({0, *(position for position in inner if position < len(ids))})
    path = write_megatron(folder / "x", ids, starts)
    expected = by_hand(ids, starts)
    assert read(path, options("megatron")) == [found for _, found in expected]
    middle = cut.draw(st.integers(0, 2 * len(ids)))
    for span in ((0, middle), (middle, 2 * len(ids))):
        own = [found for position, found in expected if span[0] <= 2 * position < span[1]]
        assert read(path, options("megatron"), span) == own
        check_needed(path, options("megatron"), span, own)


def check_needed(
    path: Path, chosen: ReadOptions, span: tuple[int, int], expected: Documents
) -> None:
    """Check that the ranges a span needs cover all of its documents: other bytes are replaced."""
    data = path.read_bytes()
    file = LocalBytes(path, str(path))
    ranges = format_of(str(path), chosen).needed(file, chosen, span)
    kept = bytearray(b"\x05\0" * (len(data) // 2 + 1))[: len(data)]
    assert list(ranges) == sorted(ranges)
    for start, end in ranges:
        kept[start:end] = data[start:end]
    path.write_bytes(kept)
    found = read(path, chosen, span)
    path.write_bytes(data)
    assert found == expected


def test_rows_continue_from_shard_to_shard(tmp_path: Path) -> None:
    """The identity of a shard covers the ids of its last document in later shards."""

    def written(*rows: list[int]) -> list[Path]:
        columns = {"tokens": "ndarray:uint16:4"}
        with streaming.MDSWriter(
            out=str(tmp_path), columns=columns, size_limit=200, exist_ok=True
        ) as writer:
            for row in rows:
                writer.write({"tokens": np.array(row, "<u2")})
        return [tmp_path / f"shard.{number:05}.mds" for number in range(len(rows))]

    rows = [[1, 2, 9, 3], [4, 4, 4, 4], [5, 9, 6, 9], [9, 9, 9, 9]]
    paths = written(*rows)
    expected = [[[1, 2], [3, 4, 4, 4, 4, 5]], [], [[6]], []]
    assert [read(path, options("mds")) for path in paths] == expected
    before = version(paths[0], "mds")
    written(*rows[:2], [5, 9, 7, 9], rows[3])
    assert version(paths[0], "mds") == before
    written(*rows[:2], [6, 9, 6, 9], rows[3])
    assert version(paths[0], "mds") != before


def version(path: Path, name: TokenSetName, span: tuple[int, int] | None = None) -> str | None:
    source = SourceFile(url=str(path), size=path.stat().st_size)
    return identify(source, path, span=span, options=options(name)).version


def test_the_identity_of_a_file_covers_its_ids_in_a_neighbour(tmp_path: Path) -> None:
    """A document continues in the next file, which then decides the documents of the first."""
    one = write_llmc(tmp_path / "x_000001.bin", [9, 1, 2])
    spans = [(0, 1028), (1028, 1030)]  # both end in that document

    def versions(number: int, ids: list[int]) -> list[str | None]:
        write_llmc(tmp_path / f"x_{number:06}.bin", ids)
        return [version(one, "llmc", span) for span in (None, *spans)]

    alone = version(one, "llmc")
    assert alone == f"xxh128:{content_hash(one.read_bytes())}"
    before = versions(2, [3, 4, 9, 5])
    assert versions(2, [3, 4, 9, 6]) == before
    after = versions(2, [3, 5, 9, 6])
    assert alone not in {before[0], after[0]}
    assert not {*before} & {*after}
    nothing_continues = versions(2, [9, 5, 9, 6])
    # The ids with which the first file begins belong to the file before it.
    assert versions(0, [9, 7])[0] != nothing_continues[0]


def test_a_neighbour_in_which_nothing_continues_does_not_matter(tmp_path: Path) -> None:
    one = write_llmc(tmp_path / "x_000001.bin", [9, 1, 2, 9])
    alone = version(one, "llmc")
    write_llmc(tmp_path / "x_000002.bin", [9, 3, 4, 9])
    assert version(one, "llmc") == alone


def test_a_file_that_is_lost_between_two_is_named(tmp_path: Path) -> None:
    numbered = {9: [9, 1, 2], 10: [3, 9, 4], 12: [5, 9, 6]}
    first, *others = (
        write_llmc(tmp_path / f"x_{number:06}.bin", ids) for number, ids in numbered.items()
    )
    assert read(first, options("llmc"))[0] == [1, 2, 3]
    for path in others:
        with pytest.raises(SourceError, match=r"x_000011\.bin: the file is missing"):
            read(path, options("llmc"))


def test_an_index_of_mds_describes_its_shard_and_its_identity(tmp_path: Path) -> None:
    path = write_mds(tmp_path)
    assert read(path, options("mds")) == [[1, 2, 3], [4, 5, 6], [7, 8, 1]]
    before = version(path, "mds")
    write_mds(tmp_path, samples=2)
    with pytest.raises(SourceError, match=r"mds: holds 3 samples, the index says 2"):
        read(path, options("mds"))
    index = tmp_path / "index.json"
    write_mds(tmp_path)
    index.write_text(index.read_text().replace("uint16:4", "uint32:2"))
    assert version(path, "mds") != before


def test_documents_that_begin_with_the_end_of_text(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    np.array([9, 1, 2, 9, 9, 3], "<u2").tofile(path)
    assert read(path, options("nanogpt")) == [[1, 2], [3]]


def test_numbers_in_names_count() -> None:
    names = ["c-10-2", "c-2-10", "c-2-9", "c-02-9", "b", "c"]
    assert sorted(names, key=by_numbers) == ["b", "c", "c-02-9", "c-2-9", "c-2-10", "c-10-2"]
