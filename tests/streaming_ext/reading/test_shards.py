"""The shards that a dataset holds open, and those of other datasets in its cache."""

import gc
import resource
from pathlib import Path

import pytest

from streaming_ext import StreamingTokenLoader
from streaming_ext.reading import shards as shards_module
from tests.streaming_ext.build import build, numbered_parts, some_documents
from tests.streaming_ext.conftest import tokens_of


def test_no_more_than_a_bounded_number_of_shards_stays_mapped(raw, open_raw, monkeypatch) -> None:
    monkeypatch.setattr(shards_module, "most_open", lambda: 3)
    dataset = open_raw(sequence_length=70)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(dataset.size):
        expected = raw.streams["train"][70 * number : 70 * number + 70]
        assert dataset[number]["tokens"].tolist() == expected.tolist()
        assert dataset.reader.shards.ready.sum() <= 4  # 70 tokens may lie in four shards
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


def test_what_a_batch_reads_stays_when_its_shard_is_closed(open_raw) -> None:
    shards = open_raw().reader.shards
    views = shards.views([0, 1])
    expected = bytes(views[0])
    shards.close(0)
    assert shards.ready[:3].tolist() == [False, True, False]
    assert bytes(views[0]) == expected == bytes(shards.views([0])[0])


@pytest.mark.parametrize(("files", "most"), [(160, 40), (10, 32), (resource.RLIM_INFINITY, 8192)])
def test_a_quarter_of_the_files_of_a_process_stays_open(monkeypatch, files, most) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (files, files))
    assert shards_module.most_open() == most


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "settings",
    [
        {"extras": ["targets"]},
        {"batch_size": 256},  # one step touches all shards
        {"sequence_length": 2048, "batch_size": 1, "shuffle": False},  # one row touches most shards
        {"packing": "best_fit", "extras": ["targets", "starts_inside"]},
    ],
)
def test_a_block_of_steps_opens_no_more_files_than_a_process_may(
    open_cached, workers, settings, monkeypatch
) -> None:
    expected = tokens_of(StreamingTokenLoader(open_cached(**settings)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # closes the maps of the first dataset
    already = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(shards_module, "most_open", lambda: 20)  # whatever other tests left open
    resource.setrlimit(resource.RLIMIT_NOFILE, (already + 80, hard))
    try:
        dataset = open_cached(**settings)
        assert dataset.reader.num_shards > 100
        assert tokens_of(StreamingTokenLoader(dataset, num_workers=workers)) == expected
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_rewritten_dataset_never_meets_the_old_cache(open_cached, tmp_path) -> None:
    documents = some_documents(60)
    for number, each in enumerate((documents, documents[::-1])):
        built = build(tmp_path / "data", numbered_parts(each))
        row = open_cached(remote=str(built.root))[0]["tokens"]
        assert row.tolist() == built.streams["train"][:8].tolist()
        assert len(list((tmp_path / "cache").iterdir())) == number + 1
