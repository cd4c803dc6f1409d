"""Nothing is unmapped while it is read: by eviction, by threads that read ahead, or at the end."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from tests.streaming_ext.build import Built
from tests.streaming_ext.processes import in_processes

EXIT = """
import sys, threading, time
import xxhash
from streaming_ext import StreamingTokenDataset
dataset = StreamingTokenDataset(local=sys.argv[1], batch_size=4, dp_rank=0, dp_world_size=1)
views = dataset.reader.shards.views(range(100))

def read():
    while True:
        for view in views.values():
            xxhash.xxh3_128_hexdigest(view)

for _ in range(4):
    threading.Thread(target=read, daemon=True).start()
time.sleep(0.05)
"""


def test_threads_may_read_when_the_process_ends(raw: Built) -> None:
    subprocess.run([sys.executable, "-c", EXIT, raw.root], check=True)


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
