"""Source files dealt to nodes: every file once, evenly, whoever asks."""

import random

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.shard.sources import deal, own_partition

SOURCES = [Part.whole(n, SourceFile(url=f"/data/{n:02}.parquet", size=size))
           for n, size in enumerate([50, 10, 10, 30, 20])]  # fmt: skip


def test_by_hand() -> None:
    # 50 to node 0; 30, 20, then 10 to node 1, which ties at 60 with the second 10 for node 0
    assert deal([50, 10, 10, 30, 20], 2) == [[0, 1], [2, 3, 4]]
    assert deal([1, 1, 1], 3) == [[0], [1], [2]]
    assert deal([0, 0, 0, 0], 2) == [[0, 2], [1, 3]]
    assert deal([7], 1) == [[0]]


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
def test_every_file_once_and_evenly(nodes: int) -> None:
    rng = random.Random(nodes)
    for _ in range(20):
        sizes = [rng.randint(1, 1000) for _ in range(rng.randint(nodes * 4, 200))]
        shares = deal(sizes, nodes)
        assert sorted(number for share in shares for number in share) == list(range(len(sizes)))
        assert all(share == sorted(share) for share in shares)
        held = [sum(sizes[number] for number in share) for share in shares]
        assert max(held) - min(held) <= max(sizes)


def test_all_of_fineweb_edu_comes_out_even() -> None:
    rng = random.Random(1)
    sizes = [rng.choice([2_150_000_000, rng.randint(10**8, 2 * 10**9)]) for _ in range(2410)]
    held = [sum(sizes[number] for number in share) for share in deal(sizes, 4)]
    assert max(held) / min(held) < 1.001


def test_a_share_says_which_it_is() -> None:
    found = [own_partition(SOURCES, nodes=2, rank=rank) for rank in (0, 1)]
    assert [part.source for parts, _ in found for part in parts] == [
        f"/data/{number:02}.parquet" for number in (0, 1, 2, 3, 4)
    ]
    shares = [share for _, share in found]
    assert shares[0] is not None
    assert shares[1] is not None
    assert (shares[0].rank, shares[1].rank, shares[0].nodes) == (0, 1, 2)
    assert shares[0].sources == shares[1].sources
    _, other = own_partition(
        [*SOURCES[:4], Part.whole(4, SourceFile(url="/data/04.parquet", size=21))], nodes=2, rank=0
    )
    assert other is not None
    assert other.sources != shares[0].sources  # another list, other data


def test_more_nodes_than_files() -> None:
    with pytest.raises(UsageError, match="5 parts for 6 nodes"):
        own_partition(SOURCES, nodes=6, rank=0)
