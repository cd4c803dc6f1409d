"""Shards that are read by position: the same batches without a map, and errors of their own."""

import contextlib
import gc
import itertools
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.errors import CorruptDatasetError, StorageError, UsageError
from streaming_ext.shards import file_arena, mapped
from tests.streaming_ext.build import build, numbered_parts, some_documents
from tests.streaming_ext.processes import in_processes

EXTRAS = ["targets", "position_ids", "cu_seqlens", "starts_inside", "sequence_ids"]


@pytest.mark.parametrize(("length", "packing", "workers"), [
    (29, None, 0), (200, None, 1), (8, "best_fit", 0), (200, "best_fit", 0),
])  # fmt: skip
def test_the_same_batches(open_raw, tmp_path, length, packing, workers) -> None:
    settings = {"sequence_length": length, "packing": packing, "extras": EXTRAS, "shuffle": True}
    both = [
        StreamingTokenLoader(open_raw(**settings, reading=reading), num_workers=workers)
        for reading in ("maps", "files")
    ]
    steps = 0
    for one, other in zip(*both, strict=True):
        for name, values in one.items():
            same = torch.equal(values, other[name]) if torch.is_tensor(values) else True
            assert same, name
        steps += 1
    assert steps > 0
    assert both[0].state_dict() == both[1].state_dict()


def test_few_files_are_open_and_those_of_other_processes_go(packed, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(mapped, "open_files_for", lambda reader, wanted: 3)
    settings = {"remote": str(packed.root), "local": tmp_path, "batch_size": 2, "dp_rank": 0,
                "dp_world_size": 1, "shuffle": True, "predownload": 1}  # fmt: skip
    loader = StreamingTokenLoader(StreamingTokenDataset(**settings, reading="files"))
    expected = StreamingTokenLoader(StreamingTokenDataset(**settings))
    arena = loader.dataset.reader._arena
    assert isinstance(arena, file_arena.FileArena)
    most = 0
    for one, other in itertools.islice(zip(loader, expected, strict=True), 80):
        assert torch.equal(one["tokens"], other["tokens"])
        most = max(most, len(arena._files))
    assert 2 < most < loader.dataset.reader.num_shards // 3  # what a batch holds goes above 3
    files = list(arena._files.values())
    dataset = loader.dataset
    dataset.close()
    del loader, dataset, arena
    gc.collect()
    for file in files:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)


def test_a_file_that_is_cut_short_is_an_error_and_no_signal(tmp_path) -> None:
    root = build(tmp_path / "d", numbered_parts(some_documents(60)), compression="none",
                 shard_samples=200).root  # fmt: skip
    loader = StreamingTokenLoader(
        StreamingTokenDataset(local=root, batch_size=1, reading="files", dp_rank=0,
                              dp_world_size=1)
    )  # fmt: skip
    dataset = loader.dataset
    first = dataset.get_item(0)["tokens"]
    assert len(first) == 8
    path = min((root / "train" / "00000").iterdir())
    os.truncate(path, 600)
    with pytest.raises(CorruptDatasetError, match="A shard ends at byte 600, it had .* cut it sh"):
        list(itertools.islice(loader, 400))


def test_what_was_opened_ahead_is_closed_too(packed, monkeypatch) -> None:
    """Where threads open each shard before it is needed, who needs it opens none."""
    monkeypatch.setattr(mapped, "open_files_for", lambda reader, wanted: 3)
    dataset = StreamingTokenDataset(local=str(packed.root), batch_size=2, dp_rank=0,
                                    dp_world_size=1, reading="files")  # fmt: skip
    shards = dataset.reader.start_process()
    assert dataset.reader.num_shards > 9
    for shard in range(dataset.reader.num_shards):
        shards.open(shard)
        with shards.held(np.array([shard])):
            assert len(shards._order) <= 4
    dataset.close()


def test_what_lies_behind_the_end_of_a_file_is_zeros(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(1, 101)))
    arena = file_arena.FileArena(np.array([50, 100]))
    with path.open("rb") as file:
        assert arena.place(1, file.fileno(), 100).tolist() == list(range(1, 101))
    begin = int(arena.offsets[1])
    rows = arena.rows(np.array([begin, begin + 96, begin + 90, begin + 94, begin + 98]), 4)
    assert rows.tolist() == [[1, 2, 3, 4], [97, 98, 99, 100], [91, 92, 93, 94], [95, 96, 97, 98],
                             [99, 100, 0, 0]]  # fmt: skip
    assert arena.rows(np.empty(0, np.int64), 4).shape == (0, 4)


def test_a_file_that_cannot_be_read_any_more(tmp_path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    arena = file_arena.FileArena(np.array([100]))
    with (tmp_path / "file").open("rb") as file:
        arena.place(0, file.fileno(), 100)
    os.close(arena._files[0])
    arena._files[0] = os.open(tmp_path, os.O_RDONLY)  # the system reads no folder
    with pytest.raises(StorageError, match="A shard cannot be read: .*directory"):
        arena.rows(np.array([0]), 4)


def open_now() -> int:
    """Files that this process has open."""
    return sum(1 for _ in Path("/dev/fd").iterdir())


@pytest.fixture
def few_files() -> Iterator[int]:
    """A limit on open files that is four times what this process has now, and some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = min(4 * open_now() + 160, soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_all_datasets_of_a_process_share_the_files_that_it_may_have(tmp_path, few_files) -> None:
    documents = some_documents(few_files * 4 // 3)  # two of them make a shard
    root = build(tmp_path / "d", numbered_parts(documents, parts=9),
                 compression="none", shard_samples=4).root  # fmt: skip
    train, evaluation = (
        StreamingTokenDataset(local=root, batch_size=2, dp_rank=0, dp_world_size=1,
                              reading="files", predownload=1)
        for _ in range(2)
    )  # fmt: skip
    assert train.reader.num_shards > few_files // 2
    totals = [
        sum(int(batch["tokens"].sum()) for batch in StreamingTokenLoader(dataset))
        for dataset in (train, evaluation)
    ]
    assert totals[0] == totals[1] > 0
    before = dict(file_arena._taken)
    train.close()
    evaluation.close()
    del train, evaluation
    gc.collect()
    assert len(file_arena._taken) == len(before) - 2


def test_too_many_open_files_are_no_damage(packed, tmp_path, few_files) -> None:
    settings = {"remote": str(packed.root), "local": tmp_path, "batch_size": 2, "dp_rank": 0,
                "dp_world_size": 1}  # fmt: skip
    expected = StreamingTokenDataset(**settings).get_item(0)["tokens"]
    (shard,) = tmp_path.rglob("*.mds")
    kept = shard.stat().st_ino
    dataset = StreamingTokenDataset(**settings, reading="files")
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(2):  # first none is left, then one, which is one too few
            with pytest.raises(StorageError, match=rf"may have {few_files}\). Raise the limit"):
                dataset.get_item(0)
            assert shard.stat().st_ino == kept
            os.close(taken.pop())
    finally:
        for file in taken:
            os.close(file)
    assert torch.equal(dataset.get_item(0)["tokens"], expected)
    assert shard.stat().st_ino == kept


def with_few_maps_left(rank: int, root: Path) -> Any:
    """What each way reads where the system gives this process few maps more."""
    taken: list[mmap.mmap] = []
    with contextlib.suppress(OSError):
        for kind in itertools.cycle([mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE]):
            # Neighbours of two kinds are never joined to one.
            taken += [mmap.mmap(-1, mmap.PAGESIZE, prot=kind)]
    del taken[-150:]  # for threads and numpy
    found = []
    for reading in ("files", "maps"):
        dataset = StreamingTokenDataset(local=root, batch_size=2, dp_rank=0, dp_world_size=1,
                                        reading=reading, predownload=1)  # fmt: skip
        try:
            total = sum(int(batch["tokens"].sum()) for batch in StreamingTokenLoader(dataset))
            found.append(total)
        except StorageError as error:
            found.append(str(error))
        dataset.close()
    return found


@pytest.mark.skipif(
    int(Path("/proc/sys/vm/max_map_count").read_text()) > 100_000
    if Path("/proc/sys/vm/max_map_count").exists()
    else True,
    reason="the system gives a process more maps than can be taken in a moment",
)
def test_where_the_system_has_no_more_maps(tmp_path) -> None:
    root = build(tmp_path / "d", numbered_parts(some_documents(900), parts=9), compression="none",
                 shard_samples=4).root  # fmt: skip
    plain = StreamingTokenLoader(
        StreamingTokenDataset(local=root, batch_size=2, dp_rank=0, dp_world_size=1)
    )
    assert plain.dataset.reader.num_shards > 300
    expected = sum(int(batch["tokens"].sum()) for batch in plain)
    ((found, error),) = in_processes(1, with_few_maps_left, root)
    assert found == expected
    assert "The system refused to map" in error
    assert "vm.max_map_count, or pass reading='files'" in error


def test_another_way_to_read(open_raw) -> None:
    with pytest.raises(UsageError, match="`reading` must be 'maps' or 'files', got 'direct'"):
        open_raw(reading="direct")


def test_a_fork_has_none_of_the_files_that_its_parent_has_open(open_raw) -> None:
    """Else a worker begins with as many open as it may have."""
    dataset = open_raw(reading="files")
    first = dataset.get_item(0)["tokens"].tolist()
    files = list(dataset.reader._arena._files.values())

    def left_open(rank: int) -> tuple[list[int], list[int]]:
        dataset.reader.start_process()
        still = [file for file in files if Path(f"/proc/self/fd/{file}").exists()]
        return still, dataset.get_item(0)["tokens"].tolist()

    assert files
    assert in_processes(1, left_open) == [([], first)]
    assert all(os.fstat(file) for file in files)  # here they stay
