"""An index is trusted only as far as it can be checked."""

import copy as copying
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
import zstd

from streaming_ext.base.errors import CorruptDatasetError, NotADatasetError, UsageError
from streaming_ext.format.index import read_index
from streaming_ext.format.mds_index import read_table
from streaming_ext.format.schema import FileRecord, content_hash
from streaming_ext.format.shard import sequence_starts
from streaming_ext.reading.cache import ShardCache
from streaming_ext.store.remote import Remote
from tests.streaming_ext.build import Built


@pytest.fixture(scope="session")
def index(packed: Built) -> dict[str, Any]:
    return json.loads((packed.root / "train/index.json").read_text())


def parse(index: dict[str, Any]) -> Any:
    return read_table(json.dumps(index).encode(), where="test/index.json")


def test_a_published_split(packed) -> None:
    found = read_index(Remote(url=str(packed.root)), "train")
    assert int(found.samples.sum()) == 585
    assert found.token_starts[-1] == 4680
    assert found.dtype == "uint16"
    assert found.eot_id == 99
    assert found.unknown == ()
    assert found.codecs == ["zstd"] * len(found.names)


class FlippedOnce(Remote):
    """A location where the first read of each file has a flipped bit."""

    def read(self, name: str, *, limit: int, seconds: float | None = None) -> bytes:
        data = super().read(name, limit=limit, seconds=seconds)
        seen = self.__dict__.setdefault("seen", [])
        seen.append(name)
        return data if seen.count(name) > 1 else data[:-5] + bytes([data[-5] ^ 64]) + data[-4:]


def test_what_came_damaged_is_fetched_once_more(packed) -> None:
    remote = FlippedOnce(url=str(packed.root))
    assert int(read_index(remote, "train").samples.sum()) == 585
    assert remote.__dict__["seen"].count("train/index.json") == 2


@pytest.mark.parametrize("length", [3, 16, 1000, 4680])
def test_bounds_are_of_shards_or_of_runs_where_sequences_cross(packed, length) -> None:
    found = read_index(Remote(url=str(packed.root)), "train")
    assert sequence_starts(found.token_starts, 8).tolist() == [
        0,
        *np.cumsum(found.samples).tolist(),
    ]
    bounds = sequence_starts(found.token_starts, length)
    assert bounds[0] == 0
    assert bounds[-1] == 4680 // length
    assert (np.diff(bounds) >= 0).all()
    for run, first in enumerate(bounds[:-1]):
        if bounds[run + 1] > first:  # the first sequence of a run starts in it
            assert first * length >= found.token_starts[run * 8]
            assert (first - 1) * length < found.token_starts[run * 8]


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (
            "raw_data.basename",
            ["../../evil.mds", "/etc/passwd", "00000//x.mds", ".", "a\\b", "a\u0000b", 5],
        ),
        ("zip_data.basename", ["../x.zstd"]),
        ("raw_data.bytes", [2**32, 1.5, True, 70]),
        ("samples", [0, 2**31]),
        ("zip_data.bytes", [0]),
        (
            "column_encodings",
            [["pkl"], ["ndarray:uint16:9"], ["ndarray:object:8"], ["ndarray:uint16"], []],
        ),
        ("column_names", [["text"], ["tokens", "more"]]),
        ("compression", ["lzma", None]),
        ("format", ["json"]),
        ("raw_data.hashes.xxh128", ["zz"]),
        ("raw_data", [None]),
    ],
)
def test_an_entry_that_lies_is_refused(index, path, values) -> None:
    *above, name = path.split(".")
    for value in values:
        lying = copying.deepcopy(index)
        target = lying["shards"][1]
        for key in above:
            target = target[key]
        target[name] = value
        with pytest.raises(CorruptDatasetError, match="test/index.json"):
            parse(lying)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"shards": 3}', b'{"shards": [3]}', b"\xff"]
)
def test_what_is_no_index_is_refused(data) -> None:
    with pytest.raises(CorruptDatasetError, match="x.json"):
        read_table(data, where="x.json")


def test_two_shards_of_one_name_are_refused(index) -> None:
    double = {"version": 2, "shards": [index["shards"][0]] * 2}
    with pytest.raises(CorruptDatasetError, match="same name"):
        parse(double)


def test_a_set_without_shards_is_no_dataset() -> None:
    with pytest.raises(NotADatasetError):
        parse({"version": 2, "shards": []})


class TestManifest:
    def test_sizes_that_do_not_fit_the_samples_are_refused(self, packed, copy) -> None:
        root = copy(packed)
        index = json.loads((root / "train/index.json").read_text())
        index["shards"][1]["samples"] -= 1
        index["shards"][2]["samples"] += 1
        data = json.dumps(index).encode()
        (root / "train/index.json").write_bytes(data)
        manifest = json.loads((root / "manifest.json").read_bytes())
        record = FileRecord.of("train/index.json", data)
        manifest["splits"]["train"]["index"] = record.model_dump()
        (root / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(CorruptDatasetError, match="samples make"):
            read_index(Remote(url=str(root)), "train")

    def test_without_one_there_is_no_dataset(self, packed, copy) -> None:
        root = copy(packed)
        (root / "manifest.json").unlink()
        with pytest.raises(NotADatasetError, match="manifest"):
            read_index(Remote(url=str(root)), "train")

    def test_nothing_there(self, tmp_path) -> None:
        with pytest.raises(NotADatasetError, match="wait until the run"):
            read_index(Remote(url=str(tmp_path / "none")), "train")

    def test_another_index_is_refused(self, packed, copy) -> None:
        root = copy(packed)
        path = root / "train/index.json"
        path.write_bytes(path.read_bytes().replace(b'"samples": 4', b'"samples": 3', 1))
        with pytest.raises(CorruptDatasetError, match="not the file that the dataset describes"):
            read_index(Remote(url=str(root)), "train")

    def test_a_path_that_leads_out_is_refused(self, packed, copy) -> None:
        root = copy(packed)
        path = root / "manifest.json"
        path.write_text(path.read_text().replace("train/index.json", "../train/index.json"))
        with pytest.raises(CorruptDatasetError, match=r"manifest\.json"):
            read_index(Remote(url=str(root)), "train")

    @pytest.mark.parametrize("split", ["validation", "..", "../train", "/tmp"])  # noqa: S108
    def test_splits_that_are_not_there(self, packed, split) -> None:
        with pytest.raises((NotADatasetError, UsageError), match="split"):
            read_index(Remote(url=str(packed.root)), split)


def test_a_bomb_is_not_unpacked(index, tmp_path) -> None:
    """The compressed shard would unpack to far more than the index says."""
    bomb = zstd.compress(bytes(2**28), 3)
    entry = copying.deepcopy(index["shards"][0])
    entry["raw_data"]["basename"] = "s.mds"
    entry["zip_data"] = {
        "basename": "s.mds.zstd",
        "bytes": len(bomb),
        "hashes": {"xxh128": content_hash(bomb)},
    }
    (tmp_path / "s.mds.zstd").write_bytes(bomb)
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    source = Remote(url=str(tmp_path))
    cache = ShardCache(read_index(source, None), source, local=tmp_path / "cache", limit=None)
    tracemalloc.start()
    with pytest.raises(CorruptDatasetError, match=r"s\.mds\.zstd"):
        cache.fetch(0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24
    assert not list((tmp_path / "cache").rglob("*.mds"))


@pytest.mark.parametrize(
    ("field", "ours", "wrong"),
    [
        ("eot_id", 99, 98),
        ("vocab_size", 100, 101),
    ],
)
def test_a_manifest_or_record_that_was_changed_is_an_error(
    packed, copy, field, ours, wrong
) -> None:
    root = copy(packed)
    manifest, record = root / "manifest.json", root / "parts/00000.json"
    untouched = manifest.read_bytes()
    value = json.loads(untouched)
    value["spec"]["tokenizer"][field] = wrong
    manifest.write_text(json.dumps(value))
    message = f"tokenizer.{field}: the record has {ours}, the manifest {wrong}"
    with pytest.raises(CorruptDatasetError, match=message):
        read_index(Remote(url=str(root)), "train")
    held = record.read_bytes()
    record.unlink()  # a copy without records has nothing to compare with
    assert read_index(Remote(url=str(root)), "train").names
    manifest.write_bytes(untouched)
    record.write_bytes(held.replace(f'"{field}": {ours}'.encode(), f'"{field}": {wrong}'.encode()))
    with pytest.raises(CorruptDatasetError, match="not the file that the dataset describes"):
        read_index(Remote(url=str(root)), "train")
