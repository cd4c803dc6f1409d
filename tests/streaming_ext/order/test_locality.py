"""A node fetches the shards of its partition, and few more, where canonical nodes cut a shard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def shards_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*.mds")}


@pytest.fixture
def fetch(load, packed) -> Callable[..., None]:
    """Read an epoch through a cache."""

    def run(cache: Path, **settings: Any) -> None:
        usual = {"predownload": 1, "shuffle_block_size": 20, "num_canonical_nodes": None}
        list(load(remote=str(packed.root), local=cache, **usual | settings))

    return run


@pytest.mark.parametrize("nodes", [2, 8])
def test_a_node_fetches_its_partition_and_what_canonical_nodes_cut(fetch, tmp_path, nodes) -> None:
    canonical_nodes, total = 8, 147
    held = []
    for node in range(nodes):
        for rank in range(16 // nodes):  # the ranks of a node have one cache
            fetch(
                tmp_path / str(node),
                batch_size=1,
                num_canonical_nodes=canonical_nodes,
                dp_rank=node * 16 // nodes + rank,
                dp_world_size=16,
            )
        held.append(shards_of(tmp_path / str(node)))
    # Each canonical node begins and ends within a shard that its neighbour needs too.
    assert all(len(shards) <= total / nodes + 2 * canonical_nodes / nodes for shards in held)
    assert len(set.union(*held)) >= total - 8  # the last global batch may be left out
    assert sum(map(len, held)) <= total + canonical_nodes


def test_sequences_that_cross_shards_cost_one_shard_in_eight(fetch, tmp_path) -> None:
    """Thanks to runs of shards, a node does not fetch the neighbour of each of its shards."""
    held = []
    for rank in range(4):
        fetch(
            tmp_path / str(rank),
            batch_size=2,
            num_canonical_nodes=4,
            sequence_length=12,
            dp_rank=rank,
            dp_world_size=4,
        )
        held.append(len(shards_of(tmp_path / str(rank))))
    assert sum(held) <= 147 * (1 + 1 / 8) + 2 * 4
    assert np.mean(held) < 147 / 4 * 1.25


def test_prefetching_fetches_nothing_that_is_not_needed(fetch, tmp_path) -> None:
    fetch(tmp_path / "a", batch_size=2, dp_rank=0, dp_world_size=4)
    fetch(tmp_path / "b", batch_size=2, dp_rank=0, dp_world_size=4, predownload=10_000)
    assert shards_of(tmp_path / "a") == shards_of(tmp_path / "b")
