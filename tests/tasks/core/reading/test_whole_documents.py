"""Documents that begin in one shard and end in another, however shards lie in memory."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.store import LocalStorage
from streaming_ext.writing.split_writer import Memory
from tasks.core.reading.documents import PartOfDataset, joined
from tests.streaming_ext.build import EOT, Built, build

# Within a shard, at its very end, over two shards, over five, longer than a shard's header.
LENGTHS = [3, 12, 7, 30, 1, 0, 90, 2, 700, 5]
DOCUMENTS = [[length % 90] * length for length in LENGTHS]


def _made(folder: Path, compression: str, shard_samples: int) -> Built:
    rows = [("train", ids) for ids in DOCUMENTS]
    return build(folder / "dataset", [rows], compression=compression, shard_samples=shard_samples)


def _found(built: Built) -> list[list[int]]:
    part = PartOfDataset(LocalStorage(built.root), built.manifest, 0)
    found = []
    for block in part.documents("train"):
        for begin, end in pairwise([0, *block.ends.tolist()]):
            found.append(block.stream[begin:end].tolist())
    return found


@pytest.mark.parametrize("compression", ["none", "zstd:1"])
@pytest.mark.parametrize("shard_samples", [1, 2, 1000])
@pytest.mark.parametrize("at_once", [1, 2**19])
def test_documents_are_whole(compression, shard_samples, at_once, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tasks.core.reading.documents._BLOCK", at_once)
    built = _made(tmp_path, compression, shard_samples)
    assert _found(built) == [[*ids, EOT] for ids in DOCUMENTS]


def test_shards_are_read_into_the_same_memory(tmp_path) -> None:
    built = _made(tmp_path, "none", 4)
    part = PartOfDataset(LocalStorage(built.root), built.manifest, 0)
    memory = Memory()
    first = memory.of(10_000)
    blocks = [block.stream for block in part.documents("train", memory=memory)]
    assert len(blocks) > 3
    assert all(np.shares_memory(block, first) for block in blocks)


@pytest.mark.parametrize("change", [-1, 1, 1000])
def test_a_shard_of_another_length_is_damaged(change, tmp_path) -> None:
    built = _made(tmp_path, "none", 4)
    shard = built.root / "train/00000/shard.00002.mds"
    data = shard.read_bytes()
    shard.write_bytes(data + bytes(change) if change > 0 else data[:change])
    wanted = rf"shard.00002.mds: {len(data) + min(change, 1)} bytes.*, expected {len(data)}"
    with pytest.raises(CorruptDatasetError, match=wanted):
        _found(built)


@pytest.mark.parametrize(("at", "is_copied"), [(15, False), (5, True), (0, True)])
def test_ids_are_copied_if_there_is_no_room_before_them(at, *, is_copied) -> None:
    memory = np.zeros(40, np.uint8)
    ids = np.frombuffer(memory, "<u2", 10, at)
    ids[:] = np.arange(10)
    stream = joined([np.array([70, 71], "<u2"), np.array([72], "<u2")], ids, memory)
    assert stream.tolist() == [70, 71, 72, *range(10)]
    assert np.shares_memory(stream, memory) != is_copied
