"""Documents of token sets: cut by end-of-text ids and by formats, over pieces and files; damage."""

import io
import json
import tarfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_ext.errors import ShardmillError, SourceError, UsageError
from streaming_ext.stock import streaming
from streaming_ext.text.documents.formats import format_of
from streaming_ext.text.documents.local_bytes import local_bytes
from streaming_ext.text.documents.options import IdOptions, ReadOptions, TokenSetName
from streaming_ext.text.sources import SourceFile, by_numbers
from streaming_ext.text.sources.local import hash_file, identify
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from streaming_ext.text.token_sets.files.set_file import set_file
from streaming_ext.text.token_sets.id_documents import IdsAsTheyAre
from streaming_ext.text.token_sets.llmc import LlmcSet

EOT = 9
Documents = list[list[int]]


def options(name: TokenSetName, **more: Any) -> ReadOptions:
    return ReadOptions(ids=IdOptions(set_format=name, eot_id=EOT, vocab_size=10, **more))


def read(
    path: Path, chosen: ReadOptions, span: tuple[int, int] | None = None, batch_bytes: int = 20
) -> Documents:
    """The documents of a file, read in batches of five ids."""
    found: Documents = []
    row = 0
    for batch in format_of(str(path), chosen).read(
        path, chosen, span=span, batch_bytes=batch_bytes
    ):
        encoded = IdsAsTheyAre().encode(batch.texts)
        assert batch.rows.tolist() == list(range(row, row + batch.num_rows))
        assert batch.nulls == 0
        row += batch.num_rows
        found += [ids.tolist() for ids in np.split(encoded.ids, encoded.offsets[1:-1])]
    return found


def by_hand(ids: list[int], starts: list[int]) -> list[tuple[int, list[int]]]:
    """Place and ids of each document of a stream, one id after another."""
    found: list[tuple[int, list[int]]] = []
    fresh = True
    for place, token in enumerate(ids):
        fresh = fresh or place in starts
        if token != EOT and fresh:
            found.append((place, []))
        if token != EOT:
            found[-1][1].append(token)
        fresh = token == EOT
    return found


def write_llmc(path: Path, ids: list[int]) -> Path:
    head = np.zeros(256, "<i4")
    head[:3] = 20240520, 1, len(ids)
    path.write_bytes(head.tobytes() + np.array(ids, "<u2").tobytes())
    return path


def write_megatron(prefix: Path, ids: list[int], starts: list[int]) -> Path:
    """Documents that begin at some places, each of them one sequence."""
    lengths = np.diff([*starts, len(ids)])
    head = b"MMIDIDX\0\0" + np.uint64(1).tobytes() + bytes([8])
    head += np.array([len(starts), len(starts) + 1], "<u8").tobytes()
    offsets = 2 * np.array(starts)
    numbers = np.arange(len(starts) + 1)
    pieces = (lengths.astype("<i4"), offsets.astype("<i8"), numbers.astype("<i8"))
    prefix.with_suffix(".idx").write_bytes(head + b"".join(each.tobytes() for each in pieces))
    np.array(ids, "<u2").tofile(prefix.with_suffix(".bin"))
    return prefix.with_suffix(".bin")


some_ids = st.lists(st.sampled_from([1, 2, 3, EOT]), min_size=1, max_size=40)


@settings(max_examples=20, deadline=None)
@given(ids=some_ids, cut=st.data())
def test_documents_of_pieces_of_files(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], cut: st.DataObject
) -> None:
    """Each document stands in the piece of the file in which it begins, whole."""
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
        places = sorted({0, end, *cut.draw(st.lists(st.integers(0, end), max_size=3))})
        for span in pairwise(places):
            first, last = (max(0, -(-(place - 1024) // 2)) + number * size for place in span)
            own = [found for place, found in expected if first <= place < last]
            assert read(path, options("llmc"), span) == own
            check_needed(path, options("llmc"), span, own)


@settings(max_examples=20, deadline=None)
@given(ids=some_ids, cut=st.data())
def test_documents_that_the_format_tells(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], cut: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("set")
    inner = cut.draw(st.lists(st.integers(1, max(1, len(ids) - 1)), max_size=4))
    starts = sorted({0, *(place for place in inner if place < len(ids))})
    path = write_megatron(folder / "x", ids, starts)
    expected = by_hand(ids, starts)
    assert read(path, options("megatron")) == [found for _, found in expected]
    middle = cut.draw(st.integers(0, 2 * len(ids)))
    for span in ((0, middle), (middle, 2 * len(ids))):
        own = [found for place, found in expected if span[0] <= 2 * place < span[1]]
        assert read(path, options("megatron"), span) == own
        check_needed(path, options("megatron"), span, own)


def check_needed(
    path: Path, chosen: ReadOptions, span: tuple[int, int], expected: Documents
) -> None:
    """What pins a piece covers all that its documents are made of: the rest may be anything."""
    data = path.read_bytes()
    with local_bytes(path, name=str(path)) as file:
        ranges = format_of(str(path), chosen).needed(file, chosen, span)
    kept = bytearray(b"\x05\0" * (len(data) // 2 + 1))[: len(data)]
    assert list(ranges) == sorted(ranges)
    for start, end in ranges:
        kept[start:end] = data[start:end]
    path.write_bytes(kept)
    found = read(path, chosen, span)
    path.write_bytes(data)
    assert found == expected


def write_tar(path: Path, members: dict[str, Any]) -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, array in members.items():
            data = io.BytesIO()
            np.save(data, array)
            told = tarfile.TarInfo(name)
            told.size = data.tell()
            data.seek(0)
            tar.addfile(told, data)
    return path


def write_litdata(folder: Path, documents: Documents, dtype: str = "<u2") -> Path:
    lengths = [len(ids) for ids in documents]
    head = 4 * (len(documents) + 2)
    places = head + np.dtype(dtype).itemsize * np.cumsum([0, *lengths])
    data = np.array([len(documents), *places], "<u4").tobytes()
    data += np.concatenate(documents).astype(dtype).tobytes()
    path = folder / "chunk-0-0.bin"
    path.write_bytes(data)
    code = {"<u2": 5, "<u4": 6, "<i4": 2, "<i8": 3}[dtype]
    tell_litdata(folder, f"no_header_numpy:{code}")
    return path


def tell_litdata(
    folder: Path,
    form: object,
    compression: str | None = None,
    *,
    chunks: int = 1,
    dim: int | None = 5,
) -> None:
    told = {
        "chunks": [{"filename": f"chunk-0-{number}.bin", "dim": dim} for number in range(chunks)],
        "config": {"compression": compression, "data_format": [form]},
    }
    (folder / "index.json").write_text(json.dumps(told))


def test_rows_of_tars_go_on_from_tar_to_tar(tmp_path: Path) -> None:
    rows = [[1, 2, 9, 3], [4, 4, 4, 4], [5, 9, 6, 9], [9, 9, 9, 9]]
    for number in range(2):
        write_tar(
            tmp_path / f"x-{number:06}.tar",
            {f"{row}.npy": np.array(rows[row], "<u4") for row in (2 * number, 2 * number + 1)},
        )
    first, second = (tmp_path / f"x-{number:06}.tar" for number in range(2))
    assert read(first, options("webdataset")) == [[1, 2], [3, 4, 4, 4, 4, 5]]
    assert read(second, options("webdataset")) == [[6]]
    told = options("webdataset", rows="documents")
    assert read(first, told) == [[1, 2], [3], [4, 4, 4, 4]]


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz"])
def test_tars_that_are_packed(tmp_path: Path, suffix: str) -> None:
    for number, ids in enumerate([[1, 2], [3, 9, 4, 9]]):
        plain = write_tar(tmp_path / "x.tar", {"a.npy": ids})
        packed = pa.Codec("gzip").compress(plain.read_bytes(), asbytes=True)
        (tmp_path / f"x-{number}{suffix}").write_bytes(packed)
    assert read(tmp_path / f"x-0{suffix}", options("webdataset")) == [[1, 2, 3]]
    assert read(tmp_path / f"x-1{suffix}", options("webdataset")) == [[4]]


@pytest.mark.parametrize("name", ["llmc", "webdataset"])
def test_the_ids_of_a_neighbour_that_belong_to_a_file_pin_it(
    tmp_path: Path, name: TokenSetName
) -> None:
    """A document goes on in the next file, which then decides what the first one gives."""

    def write(number: int, ids: list[int]) -> Path:
        if name == "llmc":
            return write_llmc(tmp_path / f"x_{number}.bin", ids)
        return write_tar(tmp_path / f"x-{number}.tar", {"a.npy": ids})

    def version(span: tuple[int, int] | None = None) -> str:
        source = SourceFile(url=str(one), size=one.stat().st_size)
        return identify(source, one, span=span, options=options(name)).version

    one = write(1, [9, 1, 2])
    alone = version()
    assert alone == f"xxh128:{hash_file(one)}"
    write(2, [3, 4, 9, 5])
    before = version()
    pieces = [(0, 1028), (1028, 1030)] if name == "llmc" else []  # both end in that document
    of_pieces = [version(span) for span in pieces]
    write(2, [3, 4, 9, 6])
    assert version() == before
    write(2, [3, 5, 9, 6])
    assert len({version(), before, alone}) == 3
    assert not {version(span) for span in pieces} & {*of_pieces}
    write(2, [9, 5, 9, 6])
    before = version()
    write(0, [9, 7])  # and what the first one begins with belongs to that before it
    assert version() != before


def test_a_neighbour_that_nothing_goes_on_in_pins_nothing(tmp_path: Path) -> None:
    one = write_llmc(tmp_path / "x_1.bin", [9, 1, 2, 9])
    source = SourceFile(url=str(one), size=one.stat().st_size)
    alone = identify(source, one, options=options("llmc")).version
    write_llmc(tmp_path / "x_2.bin", [9, 3, 4, 9])
    assert identify(source, one, options=options("llmc")).version == alone


@pytest.mark.parametrize("name", ["llmc", "webdataset"])
def test_a_file_that_is_lost_between_two_is_named(tmp_path: Path, name: TokenSetName) -> None:
    suffix = ".bin" if name == "llmc" else ".tar"
    paths = [tmp_path / f"x_{number:06}{suffix}" for number in (9, 10, 12)]
    for path, ids in zip(paths, [[9, 1, 2], [3, 9, 4], [5, 9, 6]], strict=True):
        if name == "llmc":
            write_llmc(path, ids)
        else:
            write_tar(path, {"a.npy": ids})
    assert read(paths[0], options(name))[0] == [1, 2, 3]
    for path in paths[1:]:
        with pytest.raises(SourceError, match=rf"x_000011\{suffix}: the file is not there"):
            read(path, options(name))


def test_a_lost_tar_costs_nothing_where_samples_are_whole_documents(tmp_path: Path) -> None:
    paths = [tmp_path / f"x-{number}.tar" for number in (1, 3)]
    for path in paths:
        write_tar(path, {"a.npy": [3, 9], "b.npy": [4, 9]})
    told = options("webdataset", rows="documents")
    for path in paths:
        assert read(path, told) == [[3], [4]]
        source = SourceFile(url=str(path), size=path.stat().st_size)
        assert identify(source, path, options=told).version == f"xxh128:{hash_file(path)}"


def write_mds(folder: Path, *, samples: int = 3, kind: str = "uint16:4", **more: Any) -> Path:
    columns = json.dumps({"column_encodings": [f"ndarray:{kind}"]}).encode()
    head = 4 + 4 * 4 + len(columns)
    ids = np.array([1, 2, 3, 9, 4, 5, 6, 9, 7, 8, 1, 9], "<u2")
    places = np.array([3, *(head + 8 * n for n in range(4))], "<u4")
    data = places.tobytes() + columns + ids.tobytes()
    path = folder / "shard.00000.mds"
    path.write_bytes(data)
    raw = {"basename": path.name, "bytes": len(data), "hashes": {}} | more
    entry = {"format": "mds", "column_names": ["tokens"], "column_encodings": [f"ndarray:{kind}"],
             "column_sizes": [8], "compression": None, "hashes": [], "raw_data": raw,
             "zip_data": None, "samples": samples}  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    return path


def test_an_index_of_mds_counts_what_its_shard_holds_and_pins_it(tmp_path: Path) -> None:
    path = write_mds(tmp_path)
    assert read(path, options("mds")) == [[1, 2, 3], [4, 5, 6], [7, 8, 1]]
    source = SourceFile(url=str(path), size=path.stat().st_size)
    before = identify(source, path, options=options("mds")).version
    write_mds(tmp_path, samples=2)
    with pytest.raises(SourceError, match=r"mds: holds 3 samples, the index says 2"):
        read(path, options("mds"))
    index = tmp_path / "index.json"
    write_mds(tmp_path)
    index.write_text(index.read_text().replace("uint16:4", "uint32:2"))
    assert identify(source, path, options=options("mds")).version != before


def nested_index(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def nested(folder: Path) -> Path:
        path = make(folder)
        (folder / "index.json").write_text("[" * 200_000)
        return path

    return nested


def tar_of_head(head: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode()
        path = folder / "x.tar"
        with tarfile.open(path, "w") as tar:
            member = tarfile.TarInfo("a.npy")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        return path

    return make


def npy_head(shape: str) -> str:
    return f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({shape},), }}"


def test_items_of_other_types(tmp_path: Path) -> None:
    path = write_litdata(tmp_path, [[1, 2], [3, 9], [4, 9, 5]], "<i8")
    assert read(path, options("litdata")) == [[1, 2], [3], [4], [5]]


@pytest.mark.parametrize(("code", "dtype"), [(15, "<i4"), (16, "<i4"), (17, "<i8"), (18, "<i8")])
def test_items_that_were_tensors(tmp_path: Path, code: int, dtype: str) -> None:
    """As litGPT and most users of `TokensLoader` write them."""
    path = write_litdata(tmp_path, [[1, 2, 9], [3, 4]], dtype)
    tell_litdata(tmp_path, f"no_header_tensor:{code}")
    assert read(path, options("litdata")) == [[1, 2], [3, 4]]


@pytest.mark.parametrize("codec", ["zstd", "zstd:9"])
def test_a_chunk_that_is_compressed(tmp_path: Path, codec: str) -> None:
    path = write_litdata(tmp_path, [[1, 2, 9], [3, 4]])
    tell_litdata(tmp_path, "no_header_numpy:5", codec)
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


def bare(ids: list[int], dtype: str = "<u2", name: str = "x.bin") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.array(ids, dtype).tofile(folder / name)
        return folder / name

    return make


def damaged(make: Callable[[Path], Path], suffix: str, change: slice) -> Callable[[Path], Path]:
    """Without some bytes of a file of a set."""

    def damage(folder: Path) -> Path:
        path = make(folder)
        file = next(file for file in folder.iterdir() if file.name.endswith(suffix))
        data = bytearray(file.read_bytes())
        del data[change]
        file.write_bytes(data)
        return path

    return damage


def megatron(folder: Path) -> Path:
    return write_megatron(folder / "x", [1, 2, 9, 3, 4], [0, 3])


def megatron_outside(folder: Path) -> Path:
    path = megatron(folder)
    data = bytearray((folder / "x.idx").read_bytes())
    data[34 + 8 : 34 + 16] = np.int64(4000).tobytes()
    (folder / "x.idx").write_bytes(data)
    return path


def megatron_type(code: int) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = megatron(folder)
        data = bytearray((folder / "x.idx").read_bytes())
        data[17] = code
        (folder / "x.idx").write_bytes(data)
        return path

    return make


def nanotron(folder: Path) -> Path:
    np.array([3, 5], "<u8").tofile(folder / "x.ds.index")
    return bare([1, 2, 9, 3, 9], name="x.ds")(folder)


def llmc(folder: Path) -> Path:
    return write_llmc(folder / "x_000.bin", [9, 1, 2])


def litdata_of(form: object) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = write_litdata(folder, [[1, 9]])
        tell_litdata(folder, form)
        return path

    return make


def litdata_told(**told: Any) -> Callable[[Path], Path]:
    """A chunk, and an index that tells something else."""

    def make(folder: Path) -> Path:
        path = write_litdata(folder, [[1, 9]])
        tell_litdata(folder, "no_header_numpy:5", **told)
        return path

    return make


def tar_of(name: str, array: Any, more: str = "b.npy") -> Callable[[Path], Path]:
    return lambda folder: write_tar(folder / "x.tar", {name: array, more: array})


TAIL, MIDDLE = slice(-1, None), slice(-2, None)
WRONG: list[tuple[TokenSetName, Callable[[Path], Path], str]] = [
    ("nanogpt", damaged(bare([1, 9]), ".bin", TAIL), "3 bytes are no whole number of uint16"),
    ("nanogpt", bare([1, 2, 3]), r"no end-of-text id \(9\).*--eot-token"),
    ("nanogpt", bare([1, 9, 3]), "ends in the middle of a document.*cut short"),
    ("nanogpt", bare([1, 12, 9]), r"id 12 at place 1 is outside the vocabulary of 10.*--dtype"),
    ("nanogpt", bare([1, 9] * 40, "<u4"), "all but one of 2 ids are 0.*--dtype uint32"),
    ("nanogpt", bare([1, 9] * 40, "<i8"), "all but one of 4 ids are 0.*--dtype int64"),
    ("olmo", bare([1, 9] * 40, "<u4", "x.npy"), "all but one of 4 ids are 0.*--dtype uint32"),
    ("olmo", lambda folder: _saved(folder / "x.npy"), "made by numpy.save"),
    ("olmo", bare([1, 2, 9, 3], "<u1", "x.npy"), "ends in the middle of a document"),
    ("llmc", damaged(llmc, ".bin", MIDDLE), "its head counts 3 ids.*cut short"),
    ("llmc", bare([1, 9]), "does not begin as files of llm.c do.*nanogpt"),
    ("megatron", damaged(megatron, ".bin", MIDDLE), "8 bytes, but x.idx points to 10"),
    ("megatron", damaged(megatron, ".idx", TAIL), "2 sequences and 3 places.*cut short"),
    ("megatron", megatron_outside, "sequences do not lie one behind the other"),
    ("megatron", megatron_type(6), "version 1 with ids of type 6"),
    ("megatron", megatron_type(4), "10 bytes, but x.idx points to 20|do not lie one behind"),
    ("megatron", bare([1, 9]), "no x.idx beside it.*nanogpt"),
    ("nanotron", damaged(nanotron, ".ds", MIDDLE), "8 bytes, but its index tells of 5 ids"),
    ("nanotron", damaged(nanotron, ".index", TAIL), "15 bytes are no whole number of places"),
    ("nanotron", bare([1, 9], name="x.ds"), "x.ds.index: the file is gone"),
    ("litdata", damaged(lambda f: write_litdata(f, [[1, 9]]), ".bin", TAIL), "15 bytes, in which"),
    ("litdata", bare([1, 9]), "no index.json beside it"),
    ("litdata", litdata_of("no_header_numpy:five"), "chunks of 'no_header_numpy:five'"),
    ("litdata", litdata_of("no_header_tensor:11"), "chunks of 'no_header_tensor:11'"),
    ("litdata", litdata_told(chunks=3), r"lists chunk-0-1.bin and more, which is not there"),
    ("litdata", litdata_told(chunks=0), r"index.json does not list it. Leave it out"),
    ("litdata", litdata_told(dim=None), r"for PyTreeLoader\. .*item_loader=TokensLoader"),
    ("litdata", litdata_of(5), "chunks of 5, compressed with None; chunks of ids"),
    ("webdataset", damaged(tar_of("a.npy", [1, 9]), ".tar", slice(700, None)), "cut short"),
    ("webdataset", tar_of("a.npy", [1, 9], more="a.ids.npy"), "sample a holds several .npy"),
    ("webdataset", tar_of("a.txt", [1, 9], more="b.txt"), "no sample with ids as .npy"),
    ("webdataset", tar_of("a.npy", [[1.5]]), "2 dimensions of float64"),
    ("mds", bare([1, 9], name="shard.00000.mds"), "no index.json beside it or above"),
    ("mds", lambda folder: write_mds(folder, hashes=[]), "hashes are .., expected an object"),
    ("mds", lambda folder: write_mds(folder, hashes={"xxh128": 5}), "5 is no xxh128"),
    ("mds", nested_index(write_mds), "no MDS index of tokens"),
    ("litdata", nested_index(lambda f: write_litdata(f, [[1, 9]])), "no index of litData"),
    *(
        ("webdataset", tar_of_head(head), r"a\.npy: no array")
        for head in ("((((", npy_head("1099511627776"), npy_head("-5"), npy_head("9" * 20))
    ),
]


def _saved(path: Path) -> Path:
    np.save(path, np.array([1, 9], "<u1"))
    return path


@pytest.mark.parametrize(("name", "make", "words"), WRONG)
def test_what_is_wrong_with_a_file_is_one_error(
    tmp_path: Path, name: TokenSetName, make: Callable[[Path], Path], words: str
) -> None:
    """Where a look tells it before any work, by that; else by reading."""
    path = make(tmp_path)
    chosen, state = options(name), path.stat()
    source = SourceFileBytes(SourceFile(url=str(path), size=state.st_size))

    def look_and_read() -> None:
        format_of(str(path), chosen).look(source, chosen)
        read(path, chosen)

    with pytest.raises(ShardmillError, match=words) as raised:
        look_and_read()
    assert isinstance(raised.value, SourceError | UsageError)
    assert str(path.parent) in str(raised.value)


@pytest.mark.parametrize("asked", ["uint16", "int32", "uint32"])
def test_a_type_that_is_too_small_is_refused(tmp_path: Path, asked: str) -> None:
    """What does not tell the type itself would be read as ids with zeros between them."""
    path = bare([1, 2, 3, 9] * 40, "<i8")(tmp_path)
    chosen = options("nanogpt", dtype=asked)
    with pytest.raises(UsageError, match="Pass --dtype int64"):
        format_of(str(path), chosen).look(
            SourceFileBytes(SourceFile(url=str(path), size=path.stat().st_size)), chosen
        )
    with streaming.MDSWriter(out=str(tmp_path / "mds"), columns={"tokens": "bytes"}) as writer:
        for _ in range(20):
            writer.write({"tokens": np.array([1, 2, 3, 9] * 4, "<i8").tobytes()})
    shard = tmp_path / "mds/shard.00000.mds"
    with pytest.raises(SourceError, match=r"mds: all but one of . ids are 0.* --dtype int64"):
        read(shard, options("mds", dtype=asked))
    assert read(shard, options("mds", dtype="int64")) == [[1, 2, 3]] * 80
    with pytest.raises(UsageError, match=r"index\.json: .*do not tell the type.*--dtype\): int64"):
        read(shard, options("mds"))


def test_rows_that_are_filled_up_with_0_are_no_wider_ids(tmp_path: Path) -> None:
    path = bare([1, 2, 1, *[0] * 97])(tmp_path)
    chosen = ReadOptions(ids=IdOptions(set_format="nanogpt", eot_id=0, vocab_size=10))
    source = SourceFileBytes(SourceFile(url=str(path), size=path.stat().st_size))
    assert format_of(str(path), chosen).look(source, chosen) is None
    assert read(path, chosen) == [[1, 2, 1]]
    path = bare([1, 0, 1, *[0] * 97])(tmp_path)
    assert format_of(str(path), chosen).look(source, chosen) is None


@pytest.mark.parametrize("name", ["llmc", "olmo"])
def test_a_file_that_cannot_be_opened_is_one_error(tmp_path: Path, name: TokenSetName) -> None:
    """What is no file, and yet has a size."""
    path = tmp_path / ("x_0.bin" if name == "llmc" else "x.npy")
    path.mkdir()
    assert path.stat().st_size % 2 == 0
    with pytest.raises(SourceError, match=rf"{path.name}: cannot be read: Is a directory"):
        read(path, options(name))


def test_a_document_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_ext.text.token_sets.token_set.MAX_TEXT_BYTES", 40)
    path = write_llmc(tmp_path / "x_0.bin", [9, *[1] * 30])
    with pytest.raises(SourceError, match=r"no end-of-text id in .* ids one behind the other"):
        read(path, options("llmc"))
    with pytest.raises(SourceError, match=r"no end-of-text id in .* ids one behind the other"):
        read(path, options("llmc"), (0, 1030))
    assert LlmcSet().neighbour(set_file(path, str(path)), 1, chosen_ids(options("llmc"))) is None


def chosen_ids(chosen: ReadOptions) -> IdOptions:
    assert chosen.ids is not None
    return chosen.ids


def test_numbers_in_names_count() -> None:
    names = ["c-10-2", "c-2-10", "c-2-9", "c-02-9", "b", "c"]
    assert sorted(names, key=by_numbers) == ["b", "c", "c-02-9", "c-2-9", "c-2-10", "c-10-2"]
