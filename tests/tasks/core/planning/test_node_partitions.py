"""Parts are dealt to nodes: every part once, evenly, the same on every node."""

import random

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.format.manifest import NodePartition
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.shard.sources import balanced_groups, own_partition


def test_by_hand() -> None:
    # 50 goes to node 0; 30, 20, then 10 to node 1, which ties at 60 with the second 10 for node 0.
    assert balanced_groups([50, 10, 10, 30, 20], 2) == [[0, 1], [2, 3, 4]]
    assert balanced_groups([0, 0, 0, 0], 2) == [[0, 2], [1, 3]]
    assert balanced_groups([7], 1) == [[0]]


@pytest.mark.parametrize("nodes", [1, 2, 7])
def test_every_part_once_and_evenly(nodes) -> None:
    rng = random.Random(nodes)
    for _ in range(20):
        sizes = [rng.randint(1, 1000) for _ in range(rng.randint(nodes * 4, 200))]
        groups = balanced_groups(sizes, nodes)
        assert sorted(number for group in groups for number in group) == list(range(len(sizes)))
        assert all(group == sorted(group) for group in groups)
        held = [sum(sizes[number] for number in group) for group in groups]
        assert max(held) - min(held) <= max(sizes)


def test_a_partition_says_which_it_is() -> None:
    def partitions(*sizes: int) -> list[tuple[tuple[Part, ...], NodePartition | None]]:
        sources = [SourceFile(url=f"/{n}.parquet", size=size) for n, size in enumerate(sizes)]
        parts = [Part.whole(number, source) for number, source in enumerate(sources)]
        return [own_partition(parts, nodes=2, rank=rank) for rank in (0, 1)]

    (first, name), (second, other) = partitions(50, 10, 10, 30, 20)
    assert [part.source for part in first] == ["/0.parquet", "/1.parquet"]
    assert [part.source for part in second] == ["/2.parquet", "/3.parquet", "/4.parquet"]
    assert name is not None
    assert other == name.model_copy(update={"rank": 1})
    assert (name.rank, name.nodes) == (0, 2)
    _, (_, changed) = partitions(50, 10, 10, 30, 21)
    assert changed is not None
    assert changed.sources != name.sources
    with pytest.raises(UsageError, match="2 parts for 6 nodes"):
        own_partition(first, nodes=6, rank=0)
