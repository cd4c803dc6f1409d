"""Nothing is unmapped while it is read: by eviction, by threads that read ahead, or at the end."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from tests.streaming_ext.build import Built
from tests.streaming_ext.processes import in_processes

EXIT = """
import ctypes, sys, threading, time
import numpy as np, xxhash
from streaming_ext.shards.arena import Arena
arena = Arena(np.array([2**26]))
with open(sys.argv[1], "rb") as file:
    data = arena.place(0, file.fileno(), 2**26)

def read():
    while True:
        xxhash.xxh3_128_hexdigest(data.data)

for _ in range(4):
    threading.Thread(target=read, daemon=True).start()
time.sleep(0.05)
"""


def test_threads_may_read_when_the_process_ends(tmp_path: Path) -> None:
    file = tmp_path / "shard"
    with file.open("wb") as made:
        made.truncate(2**26)
    for _ in range(2):
        subprocess.run([sys.executable, "-c", EXIT, file], check=True)


def close_while_another_opens(root: Path) -> bool:
    dataset = StreamingTokenDataset(
        local=root, batch_size=4, extras=["targets"], dp_rank=0, dp_world_size=1
    )
    reader = dataset.reader
    located = reader.locate(np.array([0]), 8)
    with reader.held(np.array([0])):
        expected = reader.gather(located, slice(0, 1), 8).tolist()
    shards = reader._shards
    clear = shards.arena.clear
    opener = threading.Thread(target=reader.open, args=(0,))

    def clear_late(slot: int) -> None:
        opener.start()
        opener.join(0.3)  # a thread that reads ahead gets as far as it may
        clear(slot)

    shards.arena.clear = clear_late  # type: ignore[method-assign]
    shards.close(0)
    opener.join()
    assert reader.ready[0]
    with reader.held(np.array([0])):
        return bool(reader.gather(located, slice(0, 1), 8).tolist() == expected)


def test_a_shard_is_not_opened_while_it_is_closed(raw: Built) -> None:
    """In a process of its own: reading what is not mapped would end this one."""
    assert in_processes(1, lambda rank: close_while_another_opens(raw.root)) == [True]


def test_what_is_held_is_not_closed(raw: Built) -> None:
    dataset = StreamingTokenDataset(
        local=raw.root, batch_size=4, extras=["targets"], dp_rank=0, dp_world_size=1
    )
    shards = dataset.reader._shards
    with shards.held(np.array([0, 1])), shards.held(np.array([1])):
        assert not shards.close(1)
    assert shards.close(1)
    assert dataset.reader.ready[:3].tolist() == [True, False, False]


def read_in_a_small_cache(remote: Path, local: Path, workers: int, limit: int) -> list[Any]:
    dataset = StreamingTokenDataset(
        remote=str(remote), local=local, batch_size=64, shuffle=True, shuffle_block_size=16,
        cache_limit=limit, extras=["starts_inside", "targets"], dp_rank=0, dp_world_size=1,
    )  # fmt: skip
    loader = StreamingTokenLoader(dataset, num_workers=workers)
    return [{name: values.tolist() for name, values in batch.items()}
            for _ in range(2) for batch in loader]  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_the_smallest_cache_that_is_allowed_gives_the_same_batches(
    packed: Built, tmp_path: Path, workers: int
) -> None:
    """In processes of their own: a fault of memory would end this one."""
    largest = int(
        StreamingTokenDataset(local=packed.root, batch_size=4, dp_rank=0, dp_world_size=1)
        .reader.raw_sizes.max()
    )  # fmt: skip
    limits = [4 * largest, 2**30]
    small, large = in_processes(
        2,
        lambda rank: read_in_a_small_cache(
            packed.root, tmp_path / str(rank), workers, limits[rank]
        ),
    )
    assert len(small) == 18
    assert small == large
