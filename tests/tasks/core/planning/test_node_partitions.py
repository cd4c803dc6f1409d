"""Parts dealt to nodes: every part once, evenly, whoever asks."""

import random
from pathlib import Path

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.format.manifest import NodePartition
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.shard.sources import deal, own_partition


def test_by_hand() -> None:
    # 50 to node 0; 30, 20, then 10 to node 1, which ties at 60 with the second 10 for node 0
    assert deal([50, 10, 10, 30, 20], 2) == [[0, 1], [2, 3, 4]]
    assert deal([0, 0, 0, 0], 2) == [[0, 2], [1, 3]]
    assert deal([7], 1) == [[0]]


@pytest.mark.parametrize("nodes", [1, 2, 7])
def test_every_part_once_and_evenly(nodes: int) -> None:
    rng = random.Random(nodes)
    for _ in range(20):
        sizes = [rng.randint(1, 1000) for _ in range(rng.randint(nodes * 4, 200))]
        groups = deal(sizes, nodes)
        assert sorted(number for group in groups for number in group) == list(range(len(sizes)))
        assert all(group == sorted(group) for group in groups)
        held = [sum(sizes[number] for number in group) for group in groups]
        assert max(held) - min(held) <= max(sizes)


def parts(*sizes: int) -> list[Part]:
    sources = (SourceFile(url=f"/data/{n:02}.parquet", size=size) for n, size in enumerate(sizes))
    return [Part.whole(number, source) for number, source in enumerate(sources)]


def partition(of: list[Part], rank: int) -> NodePartition:
    found = own_partition(of, nodes=2, rank=rank)[1]
    assert found is not None
    return found


def test_a_partition_says_which_it_is() -> None:
    of = parts(50, 10, 10, 30, 20)
    found = [own_partition(of, nodes=2, rank=rank)[0] for rank in (0, 1)]
    assert [[Path(part.source).stem for part in each] for each in found] == [
        ["00", "01"],
        ["02", "03", "04"],
    ]
    first, second = (partition(of, rank) for rank in (0, 1))
    assert (first.rank, second.rank, first.nodes) == (0, 1, 2)
    assert first.sources == second.sources
    assert partition(parts(50, 10, 10, 30, 21), 0).sources != first.sources  # other data
    with pytest.raises(UsageError, match="5 parts for 6 nodes"):
        own_partition(of, nodes=6, rank=0)
