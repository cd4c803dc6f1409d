"""Tokens by their place: any length, across shards and streams, in place, cached or compressed."""

import pickle
import resource
from pathlib import Path

import numpy as np
import pytest

from streaming_ext.base.arrays import ranges
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.format.index import read_index
from streaming_ext.reading import shards as shards_module
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.token_reader import TokenReader, by_value
from streaming_ext.store.remote import Remote
from tests.streaming_ext.build import Built, build, numbered_parts, some_documents


def reader_of(*roots: Path, local: Path | None = None, limit: int | None = None) -> TokenReader:
    caches = []
    for number, root in enumerate(roots):
        source = Remote(url=str(root))
        folder = None if local is None else local / str(number)
        index = read_index(source, "train")
        caches.append(ShardCache(index, source, local=folder, limit=limit))
    return TokenReader(caches)


def read(reader: TokenReader, starts: list[int], length: int) -> np.ndarray:
    runs = reader.runs(np.array(starts), length, np.arange(len(starts) + 1))
    return reader.copy(runs, slice(0, len(starts))).reshape(-1, length)


def test_arithmetic_of_runs() -> None:
    assert ranges(np.array([5, 9, 0]), np.array([2, 0, 3])).tolist() == [5, 6, 0, 1, 2]
    found = [(value, own.tolist()) for value, own in by_value(np.array([7, 3, 7, 3, 3]))]
    assert found == [(3, [1, 3, 4]), (7, [0, 2])]
    assert not list(by_value(np.array([], np.int64)))


@pytest.mark.parametrize("length", [1, 8, 31, 33, 1000])
def test_rows_of_any_length_are_slices_of_the_stream(raw: Built, length: int) -> None:
    stream = raw.streams["train"]
    starts = list(range(0, len(stream) - length + 1, max(1, length // 3)))
    rows = read(reader_of(raw.root), starts, length)
    assert rows.dtype == np.uint16
    expected = np.stack([stream[start : start + length] for start in starts])
    assert (rows == expected).all()


def test_compressed_shards_read_the_same(raw: Built, packed: Built, tmp_path: Path) -> None:
    starts = list(range(0, 4600, 37))
    expected = read(reader_of(raw.root), starts, 40)
    assert (read(reader_of(packed.root, local=tmp_path), starts, 40) == expected).all()
    # without a cache of its own, a local dataset is unpacked beside itself
    assert (read(reader_of(packed.root), starts, 40) == expected).all()
    assert (packed.root / ".unpacked").is_dir()


def test_streams_lie_end_to_end(raw: Built, tmp_path: Path) -> None:
    other = build(tmp_path / "other", [[("train", [5, 6, 7])]], compression="none")
    reader = reader_of(raw.root, other.root)
    assert reader.stream_starts.tolist() == [0, 4680, 4688]
    assert read(reader, [4680], 4).tolist() == [[5, 6, 7, 99]]


def test_streams_of_different_id_types_are_refused(raw: Built, tmp_path: Path) -> None:
    wide = build(tmp_path / "wide", [[("train", [5])]], vocab_size=100_000)
    with pytest.raises(UsageError, match="uint16, uint32"):
        reader_of(raw.root, wide.root)


def test_neighbours_are_known_within_a_shard(raw: Built) -> None:
    reader = reader_of(raw.root)
    stream = raw.streams["train"]
    starts = np.array([0, 8, 24, 32])
    after = reader.after(starts + 8, reader.shards_of(starts))
    assert after.tolist() == [*stream[[8, 16]].tolist(), -1, stream[40]]


def test_a_reader_is_sent_to_another_process_without_its_mappings(raw: Built) -> None:
    reader = reader_of(raw.root)
    read(reader, [0], 8)
    again = pickle.loads(pickle.dumps(reader))  # noqa: S301
    assert not again.shards.ready.any()
    assert (read(again, [100], 50) == raw.streams["train"][100:150]).all()


def test_no_more_than_a_bounded_number_of_shards_stays_mapped(
    raw: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "most_open", lambda: 3)
    reader = reader_of(raw.root)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for start in range(0, 4600, 8):
        row = read(reader, [start], 70)
        assert (row == raw.streams["train"][start : start + 70]).all()
        assert reader.shards.ready.sum() <= 4  # 70 tokens may lie in four shards
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


def test_what_a_batch_reads_stays_when_its_shard_is_closed(raw: Built) -> None:
    shards = reader_of(raw.root).shards
    views = shards.views([0, 1])
    expected = bytes(views[0])
    shards.close(0)
    assert shards.ready[:3].tolist() == [False, True, False]
    assert bytes(views[0]) == expected == bytes(shards.views([0])[0])


@pytest.mark.parametrize(("files", "most"), [(160, 40), (10, 32), (resource.RLIM_INFINITY, 8192)])
def test_a_quarter_of_the_files_of_a_process_stays_open(
    monkeypatch: pytest.MonkeyPatch, files: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (files, files))
    assert shards_module.most_open() == most


class TestDamage:
    def damage(self, path: Path, how: str) -> None:
        data = bytearray(path.read_bytes())
        if how == "missing":
            path.unlink()
        elif how == "truncated":
            path.write_bytes(data[:-3])
        elif how == "longer":
            path.write_bytes(data + b"x")
        else:
            data[len(data) // 2] ^= 1
            path.write_bytes(data)

    @pytest.mark.parametrize("how", ["missing", "truncated", "longer", "flipped"])
    def test_in_place_it_is_an_error_that_names_the_shard(self, raw, copy, how) -> None:
        root = copy(raw)
        self.damage(root / "train/00001/shard.00002.mds", how)
        reader = reader_of(root)
        shard = reader.caches[0].index.names.index("00001/shard.00002.mds")
        start = int(reader.shard_starts[shard])
        assert (read(reader, [0], 8) == raw.streams["train"][:8]).all()
        with pytest.raises(CorruptDatasetError, match=r"00001/shard\.00002\.mds"):
            read(reader, [start], 8)

    @pytest.mark.parametrize("how", ["missing", "truncated", "longer", "flipped"])
    def test_a_cached_copy_is_fetched_anew(self, packed, tmp_path, how) -> None:
        expected = read(reader_of(packed.root, local=tmp_path), [0], 8)
        (path,) = tmp_path.rglob("shard.00000.mds")
        self.damage(path, how)
        assert (read(reader_of(packed.root, local=tmp_path), [0], 8) == expected).all()

    @pytest.mark.parametrize("how", ["missing", "truncated", "longer", "flipped"])
    def test_at_the_source_it_is_an_error_that_names_the_shard(
        self, packed, copy, tmp_path, how
    ) -> None:
        root = copy(packed)
        self.damage(root / "train/00000/shard.00003.mds.zstd", how)
        reader = reader_of(root, local=tmp_path / "cache")
        with pytest.raises(CorruptDatasetError, match=r"00000/shard\.00003\.mds\.zstd"):
            read(reader, [3 * 32], 8)
        assert not list((tmp_path / "cache").rglob("shard.00003*"))


def test_a_rewritten_dataset_never_meets_the_old_cache(tmp_path: Path) -> None:
    documents = some_documents(60)
    first = build(tmp_path / "data", numbered_parts(documents))
    cache = tmp_path / "cache"
    read(reader_of(first.root, local=cache), [0], 100)
    second = build(tmp_path / "data", numbered_parts(documents[::-1]))
    row = read(reader_of(second.root, local=cache), [0], 100)
    assert (row == second.streams["train"][:100]).all()
    assert (row != first.streams["train"][:100]).any()
    assert len(list((cache / "0").iterdir())) == 2


def test_a_limited_cache_evicts_and_fetches_again(packed: Built, tmp_path: Path) -> None:
    size = 280 * 6
    reader = reader_of(packed.root, local=tmp_path, limit=size)
    for start in [*range(0, 3000, 8), *range(0, 600, 8)]:
        assert (read(reader, [start], 8) == packed.streams["train"][start : start + 8]).all()
        held = sum(path.stat().st_size for path in tmp_path.rglob("*.mds"))
        assert held <= size
    assert reader.shards.ready.sum() <= 7


def test_a_limited_cache_never_touches_the_dataset(raw: Built, copy) -> None:
    root = copy(raw)
    before = sorted(path for path in root.rglob("*"))
    reader = reader_of(root, limit=1)
    read(reader, list(range(0, 4600, 8)), 8)
    assert sorted(path for path in root.rglob("*")) == before
