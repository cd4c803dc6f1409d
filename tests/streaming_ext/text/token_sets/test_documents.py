"""Documents of token sets: cut by end-of-text ids and by formats, over spans and files."""

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.base.errors import SourceError
from streaming_ext.format.schema import content_hash
from streaming_ext.format.spec import ReadOptions, TokenSetName
from streaming_ext.text.documents.files import LocalBytes
from streaming_ext.text.fetch import identify
from streaming_ext.text.formats import format_of
from streaming_ext.text.sources import SourceFile, by_numbers
from tests.streaming_ext.text.token_sets.writing import (
    EOT,
    Documents,
    options,
    read,
    write_litdata,
    write_litdata_index,
    write_llmc,
    write_mds,
    write_megatron,
    write_tar,
)


def by_hand(ids: list[int], starts: list[int]) -> list[tuple[int, list[int]]]:
    """Position and ids of each document of a stream, one id after another."""
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
    """Each document belongs to the span of the file in which it begins, complete."""
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
            first, last = (max(0, -(-(position - 1024) // 2)) + number * size for position in span)
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
    """The identity of a span covers all of its documents: the rest may be anything."""
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


def test_rows_continue_from_tar_to_tar(tmp_path: Path) -> None:
    rows = [[1, 2, 9, 3], [4, 4, 4, 4], [5, 9, 6, 9], [9, 9, 9, 9]]
    for number in range(2):
        write_tar(
            tmp_path / f"x-{number:06}.tar",
            {f"{row}.npy": np.array(rows[row], "<u4") for row in (2 * number, 2 * number + 1)},
        )
    first, second = (tmp_path / f"x-{number:06}.tar" for number in range(2))
    assert read(first, options("webdataset")) == [[1, 2], [3, 4, 4, 4, 4, 5]]
    assert read(second, options("webdataset")) == [[6]]
    chosen = options("webdataset", rows="documents")
    assert read(first, chosen) == [[1, 2], [3], [4, 4, 4, 4]]


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz"])
def test_tars_that_are_packed(tmp_path: Path, suffix: str) -> None:
    for number, ids in enumerate([[1, 2], [3, 9, 4, 9]]):
        plain = write_tar(tmp_path / "x.tar", {"a.npy": ids})
        (tmp_path / f"x-{number}{suffix}").write_bytes(gzip.compress(plain.read_bytes()))
    assert read(tmp_path / f"x-0{suffix}", options("webdataset")) == [[1, 2, 3]]
    assert read(tmp_path / f"x-1{suffix}", options("webdataset")) == [[4]]


def write(folder: Path, name: TokenSetName, number: int, ids: list[int]) -> Path:
    """A file of a set of numbered files."""
    if name == "llmc":
        return write_llmc(folder / f"x_{number:06}.bin", ids)
    return write_tar(folder / f"x_{number:06}.tar", {"a.npy": ids})


def version(
    path: Path, name: TokenSetName, span: tuple[int, int] | None = None, **more: Any
) -> str | None:
    source = SourceFile(url=str(path), size=path.stat().st_size)
    return identify(source, path, span=span, options=options(name, **more)).version


@pytest.mark.parametrize("name", ["llmc", "webdataset"])
def test_the_identity_of_a_file_covers_its_ids_in_a_neighbour(
    tmp_path: Path, name: TokenSetName
) -> None:
    """A document continues in the next file, which then decides the documents of the first."""
    one = write(tmp_path, name, 1, [9, 1, 2])
    spans = [(0, 1028), (1028, 1030)] if name == "llmc" else []  # both end in that document

    def versions(number: int, ids: list[int]) -> list[str | None]:
        write(tmp_path, name, number, ids)
        return [version(one, name, span) for span in (None, *spans)]

    alone = version(one, name)
    assert alone == f"xxh128:{content_hash(one.read_bytes())}"
    before = versions(2, [3, 4, 9, 5])
    assert versions(2, [3, 4, 9, 6]) == before
    after = versions(2, [3, 5, 9, 6])
    assert alone not in {before[0], after[0]}
    assert not {*before} & {*after}
    nothing_continues = versions(2, [9, 5, 9, 6])
    # And what the first one begins with belongs to that before it.
    assert versions(0, [9, 7])[0] != nothing_continues[0]


def test_a_neighbour_in_which_nothing_continues_does_not_matter(tmp_path: Path) -> None:
    one = write(tmp_path, "llmc", 1, [9, 1, 2, 9])
    alone = version(one, "llmc")
    write(tmp_path, "llmc", 2, [9, 3, 4, 9])
    assert version(one, "llmc") == alone


@pytest.mark.parametrize("name", ["llmc", "webdataset"])
def test_a_file_that_is_lost_between_two_is_named(tmp_path: Path, name: TokenSetName) -> None:
    numbered = {9: [9, 1, 2], 10: [3, 9, 4], 12: [5, 9, 6]}
    first, *others = (write(tmp_path, name, number, ids) for number, ids in numbered.items())
    assert read(first, options(name))[0] == [1, 2, 3]
    for path in others:
        with pytest.raises(SourceError, match=r"x_000011\.(bin|tar): the file is missing"):
            read(path, options(name))


def test_a_lost_tar_costs_nothing_if_samples_are_documents(tmp_path: Path) -> None:
    for number in (1, 3):
        path = write_tar(tmp_path / f"x-{number}.tar", {"a.npy": [3, 9], "b.npy": [4, 9]})
    assert read(path, options("webdataset", rows="documents")) == [[3], [4]]
    alone = f"xxh128:{content_hash(path.read_bytes())}"
    assert version(path, "webdataset", rows="documents") == alone


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


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        ("numpy:3", "<i8"), ("tensor:15", "<i4"), ("tensor:16", "<i4"), ("tensor:17", "<i8"),
        ("tensor:18", "<i8"),
    ],
)  # fmt: skip
def test_items_of_other_types(tmp_path: Path, form: str, dtype: str) -> None:
    """Tensors as litGPT and most users of `TokensLoader` write them."""
    path = write_litdata(tmp_path, [[1, 2], [3, 9], [4, 9, 5]], dtype)
    write_litdata_index(tmp_path, f"no_header_{form}")
    assert read(path, options("litdata")) == [[1, 2], [3], [4], [5]]


@pytest.mark.parametrize("codec", ["zstd", "zstd:9"])
def test_a_chunk_that_is_compressed(tmp_path: Path, codec: str) -> None:
    path = write_litdata(tmp_path, [[1, 2, 9], [3, 4]])
    write_litdata_index(tmp_path, "no_header_numpy:5", codec)
    packed = pa.Codec("zstd").compress(path.read_bytes(), asbytes=True)
    path.write_bytes(packed)
    assert read(path, options("litdata")) == [[1, 2], [3, 4]]
    path.write_bytes(packed[:-3])
    with pytest.raises(SourceError, match=r"chunk-0-0\.bin: .* Copy it again"):
        read(path, options("litdata"))


def test_documents_that_begin_with_the_end_of_text(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    np.array([9, 1, 2, 9, 9, 3], "<u2").tofile(path)
    assert read(path, options("nanogpt")) == [[1, 2], [3]]


def test_numbers_in_names_count() -> None:
    names = ["c-10-2", "c-2-10", "c-2-9", "c-02-9", "b", "c"]
    assert sorted(names, key=by_numbers) == ["b", "c", "c-02-9", "c-2-9", "c-2-10", "c-10-2"]
