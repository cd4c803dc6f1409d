"""Files of token sets that are damaged, of another type or no such files: one error each."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streaming_ext.base.errors import ShardmillError, SourceError, UsageError
from streaming_ext.format.spec import IdOptions, ReadOptions, TokenSetName
from streaming_ext.text.formats import format_of
from streaming_ext.text.token_sets.bare_ids import LlmcSet
from streaming_ext.text.token_sets.set_file import local_file
from streaming_ext.training.stock import streaming
from tests.streaming_ext.text.reading import POINTER, looked_at
from tests.streaming_ext.text.token_sets.writing import (
    bare,
    llmc,
    megatron,
    options,
    read,
    write_llmc,
    write_mds,
)


def nested_index(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def nested(folder: Path) -> Path:
        path = make(folder)
        (folder / "index.json").write_text("[" * 200_000)
        return path

    return nested


def damaged(make: Callable[[Path], Path], suffix: str, change: slice) -> Callable[[Path], Path]:
    """Delete some bytes from a file of a set."""

    def damage(folder: Path) -> Path:
        path = make(folder)
        file = next(file for file in folder.iterdir() if file.name.endswith(suffix))
        data = bytearray(file.read_bytes())
        del data[change]
        file.write_bytes(data)
        return path

    return damage


def changed(make: Callable[[Path], Path], name: str, at: int, by: bytes) -> Callable[[Path], Path]:
    """Change some bytes in a file of a set."""

    def change(folder: Path) -> Path:
        path = make(folder)
        data = bytearray((folder / name).read_bytes())
        data[at : at + len(by)] = by
        (folder / name).write_bytes(data)
        return path

    return change


TAIL, MIDDLE = slice(-1, None), slice(-2, None)
WRONG: list[tuple[TokenSetName, Callable[[Path], Path], str]] = [
    ("nanogpt", damaged(bare([1, 9]), ".bin", TAIL), "3 bytes, .* 1 ids of type uint16.*--dtype"),
    ("nanogpt", bare([1, 2, 3]), r"no end-of-text id \(9\).*--eot-token"),
    ("nanogpt", bare([1, 9, 3]), "ends in the middle of a document.*cut short"),
    ("nanogpt", bare([1, 12, 9]), r"id 12 at position 1 is outside the vocabulary of 10.*--dtype"),
    ("nanogpt", bare([1, 9] * 40, "<u4"), "all but one of 2 ids are 0.*--dtype uint32"),
    ("olmo", bare([1, 9] * 40, "<u4", "x.npy"), "all but one of 4 ids are 0.*--dtype uint32"),
    ("olmo", lambda folder: _saved(folder / "x.npy"), "made by numpy.save"),
    ("llmc", damaged(llmc, ".bin", MIDDLE), "head of 1,024 and 3 ids.*cut short"),
    ("llmc", bare([1, 9]), "does not begin as files of llm.c do.*nanogpt"),
    ("megatron", damaged(megatron, ".bin", MIDDLE), "8 bytes, expected .* 5 ids"),
    ("megatron", damaged(megatron, ".idx", TAIL), "2 sequences and 3 boundaries.*cut short"),
    (
        "megatron",
        changed(megatron, "x.idx", 42, np.int64(4000).tobytes()),
        "sequences or documents do not follow each other",
    ),
    ("megatron", changed(megatron, "x.idx", 17, b"\x06"), "version 1 with ids of type 6"),
    ("megatron", bare([1, 9]), "no x.idx next to it"),
    ("mds", bare([1, 9], name="shard.00000.mds"), "no index.json next to it or above"),
    ("mds", lambda folder: write_mds(folder, hashes=[]), "hashes: must be an object"),
    (
        "mds",
        lambda folder: write_mds(folder, hashes={"xxh128": 5}),
        "xxh128: must be a valid string, got 5",
    ),
    ("mds", nested_index(write_mds), "no MDS index of tokens"),
]


def _saved(path: Path) -> Path:
    np.save(path, np.array([1, 9], "<u1"))
    return path


@pytest.mark.parametrize(("name", "make", "words"), WRONG)
def test_what_is_wrong_with_a_file_is_one_error(
    tmp_path: Path, name: TokenSetName, make: Callable[[Path], Path], words: str
) -> None:
    """A look finds it before any work if possible, otherwise reading does."""
    path = make(tmp_path)
    chosen = options(name)

    def look_and_read() -> None:
        format_of(str(path), chosen).check(looked_at(path), chosen)
        read(path, chosen)

    with pytest.raises(ShardmillError, match=words) as raised:
        look_and_read()
    assert isinstance(raised.value, SourceError | UsageError)
    assert str(path.parent) in str(raised.value)


SETS: dict[TokenSetName, Callable[[Path], Path]] = {
    "nanogpt": bare([1, 9]),
    "olmo": bare([1, 9], "<u1", "x.npy"),
    "llmc": llmc,
    "megatron": megatron,
    "mds": write_mds,
}


@pytest.mark.parametrize("name", SETS)
def test_pointers_of_git_lfs_are_named(tmp_path: Path, name: TokenSetName) -> None:
    """The pointer replaces a file, or one that is read with it."""
    path, chosen = SETS[name](tmp_path), options(name)
    assert read(path, chosen)
    for file in sorted(tmp_path.rglob("*.*")):
        data = file.read_bytes()
        file.write_bytes(POINTER)
        with pytest.raises(UsageError, match=rf"{file.name}: a pointer .*`git lfs pull`"):
            format_of(str(path), chosen).check(looked_at(path), chosen)
            read(path, chosen)
        file.write_bytes(data)


@pytest.mark.parametrize("given", ["uint16", "int32", "uint32"])
def test_a_type_that_is_too_small_is_refused(tmp_path: Path, given: str) -> None:
    """A format that does not store the type would be read as ids with zeros between them."""
    path = bare([1, 2, 3, 9] * 40, "<i8")(tmp_path)
    chosen = options("nanogpt", dtype=given)
    with pytest.raises(UsageError, match="Pass --dtype int64"):
        format_of(str(path), chosen).check(looked_at(path), chosen)
    with streaming.MDSWriter(out=str(tmp_path / "mds"), columns={"tokens": "bytes"}) as writer:
        for _ in range(20):
            writer.write({"tokens": np.array([1, 2, 3, 9] * 4, "<i8").tobytes()})
    shard = tmp_path / "mds/shard.00000.mds"
    words = r"^\S+index.json: shard.00000.mds: all but one of . ids are 0.* Pass int64 as .*--dtype"
    with pytest.raises(UsageError, match=words):
        read(shard, options("mds", dtype=given))
    assert read(shard, options("mds", dtype="int64")) == [[1, 2, 3]] * 80
    with pytest.raises(UsageError, match=r"index\.json: .*do not say the type.*--dtype\): int64"):
        read(shard, options("mds"))


@pytest.mark.parametrize("codec", ["zstd", "bz2"])
def test_a_damaged_shard_is_named_that_decides_the_length_of_rows(
    tmp_path: Path, codec: str
) -> None:
    fields = {"columns": {"tokens": "bytes"}, "compression": codec}
    with streaming.MDSWriter(out=str(tmp_path / "mds"), **fields) as writer:
        writer.write({"tokens": np.array([1, 2, 3, 9], "<u2").tobytes()})
    shard = tmp_path / f"mds/shard.00000.mds.{codec}"
    assert read(shard, options("mds", dtype="uint16")) == [[1, 2, 3]]
    shard.write_bytes(shard.read_bytes()[:-2])
    index = tmp_path / "mds/index.json"
    index.write_text(index.read_text() + "\n")  # makes the reader load it again
    with pytest.raises(UsageError, match=rf"mds/index\.json: {shard.name}: damaged {codec} data"):
        read(shard, options("mds", dtype="uint16"))


def test_rows_that_are_filled_up_with_0_are_no_wider_ids(tmp_path: Path) -> None:
    chosen = ReadOptions(ids=IdOptions(set_format="nanogpt", eot_id=0, vocab_size=10))
    for ids, expected in (([1, 2, 1], [[1, 2, 1]]), ([1, 0, 1], [[1], [1]])):
        path = bare([*ids, *[0] * 97])(tmp_path)
        format_of(str(path), chosen).check(looked_at(path), chosen)
        assert read(path, chosen) == expected


@pytest.mark.parametrize("name", ["llmc", "olmo"])
def test_a_file_that_cannot_be_opened_is_one_error(tmp_path: Path, name: TokenSetName) -> None:
    """A folder also has a size."""
    path = tmp_path / ("x_0.bin" if name == "llmc" else "x.npy")
    path.mkdir()
    assert path.stat().st_size % 2 == 0
    with pytest.raises(SourceError, match=rf"{path.name}: cannot be read: is a directory"):
        read(path, options(name))


def test_a_document_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_ext.text.token_sets.token_set.MAX_TEXT_BYTES", 40)
    path, chosen = write_llmc(tmp_path / "x_0.bin", [9, *[1] * 30]), options("llmc")
    for span in (None, (0, 1030)):
        with pytest.raises(SourceError, match=r"ids in a row without an end-of-text id"):
            read(path, chosen, span)
    assert chosen.ids is not None
    assert LlmcSet().neighbour(local_file(path), 1, chosen.ids) is None
