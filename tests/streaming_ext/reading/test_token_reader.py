"""The shards that a reader holds open, and those of other datasets in its cache."""

import resource
from pathlib import Path

import numpy as np
import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.format.index import read_index
from streaming_ext.reading import shards as shards_module
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.token_reader import TokenReader
from streaming_ext.store.remote import Remote
from tests.streaming_ext.build import build, numbered_parts, some_documents


def reader_of(*roots: Path, local: Path | None = None) -> TokenReader:
    sources = [Remote(url=str(root)) for root in roots]
    return TokenReader(
        [ShardCache(read_index(source, "train"), source, local=local, limit=None)
         for source in sources]
    )  # fmt: skip


def read(reader: TokenReader, starts: list[int], length: int) -> np.ndarray:
    runs = reader.runs(np.array(starts), length, np.arange(len(starts) + 1))
    return reader.copy(runs, slice(0, len(starts))).reshape(-1, length)


def test_streams_of_different_id_types_are_refused(raw, tmp_path) -> None:
    wide = build(tmp_path / "wide", [[("train", [5])]], vocab_size=100_000)
    with pytest.raises(UsageError, match="uint16, uint32"):
        reader_of(raw.root, wide.root)


def test_no_more_than_a_bounded_number_of_shards_stays_mapped(raw, monkeypatch) -> None:
    monkeypatch.setattr(shards_module, "most_open", lambda: 3)
    reader = reader_of(raw.root)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for start in range(0, 4600, 8):
        row = read(reader, [start], 70)
        assert (row == raw.streams["train"][start : start + 70]).all()
        assert reader.shards.ready.sum() <= 4  # 70 tokens may lie in four shards
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


def test_what_a_batch_reads_stays_when_its_shard_is_closed(raw) -> None:
    shards = reader_of(raw.root).shards
    views = shards.views([0, 1])
    expected = bytes(views[0])
    shards.close(0)
    assert shards.ready[:3].tolist() == [False, True, False]
    assert bytes(views[0]) == expected == bytes(shards.views([0])[0])


@pytest.mark.parametrize(("files", "most"), [(160, 40), (10, 32), (resource.RLIM_INFINITY, 8192)])
def test_a_quarter_of_the_files_of_a_process_stays_open(monkeypatch, files, most) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (files, files))
    assert shards_module.most_open() == most


def test_a_rewritten_dataset_never_meets_the_old_cache(tmp_path) -> None:
    documents = some_documents(60)
    first = build(tmp_path / "data", numbered_parts(documents))
    cache = tmp_path / "cache"
    read(reader_of(first.root, local=cache), [0], 100)
    second = build(tmp_path / "data", numbered_parts(documents[::-1]))
    row = read(reader_of(second.root, local=cache), [0], 100)
    assert (row == second.streams["train"][:100]).all()
    assert (row != first.streams["train"][:100]).any()
    assert len(list(cache.iterdir())) == 2
