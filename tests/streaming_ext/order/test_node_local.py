"""Each node with its own partition: real gloo processes, every sequence once, one clear refusal."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.base.errors import ConfigMismatchError, ShardmillError, UsageError
from streaming_ext.format.layout import MANIFEST
from streaming_ext.format.manifest import NodePartition
from streaming_ext.format.schema import to_json
from streaming_ext.order.node_local import PartitionReport, require_one_group
from tests.streaming_ext.build import Built, build, numbered_parts, some_documents, spec_of
from tests.streaming_ext.processes import in_processes, join_group

LENGTH = 8
BATCH = 2
SOURCES = "0" * 32
SETTINGS: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "shuffle_block_size": 20,
                            "extras": ["sequence_ids", "targets"]}  # fmt: skip


def as_partition(built: Built, rank: int, nodes: int, *, sources: str = SOURCES) -> Built:
    """The same dataset, as one partition of several."""
    partition = NodePartition(rank=rank, nodes=nodes, sources=sources)
    manifest = built.manifest.model_copy(update={"node_partition": partition})
    (built.root / MANIFEST).write_bytes(to_json(manifest))
    return Built(root=built.root, streams=built.streams, manifest=manifest)


def make_partitions(folder: Path, documents: Sequence[int], **options: Any) -> list[Built]:
    """Partitions of different sizes; each node's folder stands alone."""
    return [
        as_partition(
            build(folder / f"node{rank}" / "data",
                  numbered_parts(some_documents(count, seed=rank)), **options),
            rank, len(documents),
        )
        for rank, count in enumerate(documents)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    return make_partitions(tmp_path_factory.mktemp("two"), [60, 50])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    return make_partitions(tmp_path_factory.mktemp("three"), [40, 55, 20])


Task = Callable[[int, Path], Any]


def on_ranks(folders: Sequence[Path], task: Task, tmp_path: Path) -> list[Any]:
    """What `task` gives on each rank, or the error that it raised; rank r gets folder r only."""
    store = tmp_path / f"store{len(list(tmp_path.glob('store*')))}"

    def work(rank: int) -> Any:
        join_group(store, rank, len(folders))
        try:
            return task(rank, folders[rank])
        except ShardmillError as error:
            return error

    return in_processes(len(folders), work)


def ranks_of(partitions: Sequence[Built], each: int) -> list[Path]:
    """The folder of each rank, node by node."""
    return [partition.root for partition in partitions for _ in range(each)]


def epoch(loader: StreamingTokenLoader) -> list[tuple[list[int], list[list[int]], list[bool]]]:
    """The steps that are left of an epoch: sequences, tokens, and which rows count."""
    return [
        (
            batch["sequence_ids"].tolist(),
            batch["tokens"].tolist(),
            batch["real"].tolist() if "real" in batch else [True] * BATCH,
        )
        for batch in loader
    ]


def counted(loader: StreamingTokenLoader) -> tuple[list[int], list[int], float]:
    """Another epoch: rows of each step that count, tokens seen by then, and passes at its end."""
    rows, tokens = [], []
    for batch in loader:
        rows.append(int(batch["real"].sum()) if "real" in batch else BATCH)
        tokens.append(loader.tokens_seen)
    (partition,) = loader.achieved()
    assert partition.tokens == tokens[-1]
    return rows, tokens, partition.passes


def open_loader(root: Path, **changes: Any) -> StreamingTokenLoader:
    return StreamingTokenLoader(StreamingTokenDataset(local=root, **(SETTINGS | changes)))


def read_all(rank: int, root: Path, **changes: Any) -> Any:
    loader = open_loader(root, **changes)
    first = epoch(loader)
    dataset = loader.dataset
    group = dataset.node_group
    assert group is not None
    left = len(first) * dataset.plan.steps.global_batch.largest
    return {
        "epochs": [first, epoch(loader)],
        "counted": counted(loader),
        "node": dataset.reader.caches[0].index.manifest.node_partition.rank,
        "sequences": group.sequences,
        "left_out": sum(max(0, count - left) for count in group.sequences),
    }


def seen(answers: Sequence[Any], partitions: Sequence[Built], number: int) -> list[tuple[int, int]]:
    """(node, sequence) of every row that counts in an epoch; its tokens are the partition's."""
    found = []
    for answer in answers:
        stream = partitions[answer["node"]].streams["train"]
        for ids, tokens, real in answer["epochs"][number]:
            for sequence, row, counts in zip(ids, tokens, real, strict=True):
                if counts:
                    expected = stream[sequence * LENGTH : (sequence + 1) * LENGTH]
                    assert row == expected.tolist()
                    found.append((answer["node"], sequence))
                else:
                    assert sequence == -1
    return found


@pytest.mark.parametrize(("nodes", "drop_last"), [(2, True), (3, False)])
def test_every_sequence_once_over_the_nodes(
    nodes: int, drop_last: bool, two: list[Built], three: list[Built], tmp_path: Path
) -> None:
    partitions = two if nodes == 2 else three
    answers = on_ranks(
        ranks_of(partitions, 2),
        lambda rank, root: read_all(rank, root, drop_last=drop_last),
        tmp_path,
    )
    sizes = [len(partition.streams["train"]) // LENGTH for partition in partitions]
    assert len(set(sizes)) == nodes  # partitions that differ
    everything = {(node, n) for node, size in enumerate(sizes) for n in range(size)}
    assert all(answer["sequences"] == tuple(sizes) for answer in answers)
    steps = {len(epoch) for answer in answers for epoch in answer["epochs"]}
    assert len(steps) == 1  # the same number everywhere, or training would hang
    for number in (0, 1):
        found = seen(answers, partitions, number)
        assert len(found) == len(set(found))
        left_out = everything - set(found)
        assert len(left_out) == answers[0]["left_out"]
        if drop_last:
            assert len(left_out) < 2 * BATCH * nodes
        else:
            assert left_out == set()
    by_step = np.sum([answer["counted"][0] for answer in answers], axis=0)
    before = 2 * (sum(sizes) - answers[0]["left_out"])
    for answer in answers:  # every rank counts all ranks, without fillers
        _, tokens, passes = answer["counted"]
        assert tokens == ((before + np.cumsum(by_step)) * LENGTH).tolist()
        assert passes == pytest.approx(3 * (1 - answer["left_out"] / sum(sizes)))
    assert answers[0]["epochs"][0] != answers[0]["epochs"][1]  # a new order each epoch
    assert [answer["node"] for answer in answers] == [node for node in range(nodes) for _ in "ab"]


def test_resume_in_the_middle_on_the_same_nodes(two: list[Built], tmp_path: Path) -> None:
    """Saved by rank 0 alone, as training does, and loaded by all; also among the fillers."""

    def train(rank: int, root: Path) -> Any:
        loader = open_loader(root, drop_last=False)
        states, steps = [], []
        for batch in loader:
            steps.append(batch["sequence_ids"].tolist())
            states.append(json.loads(json.dumps(loader.state_dict())))
        return steps, states

    first = on_ranks(ranks_of(two, 2), train, tmp_path)
    states = first[0][1]
    assert all(other == states for _, other in first)  # the same on every node
    positions = [1, len(states) // 2, len(states) - 2]

    def go_on(rank: int, root: Path) -> Any:
        rest = []
        for position in positions:
            loader = open_loader(root, drop_last=False)
            loader.load_state_dict(states[position])
            rest.append([ids for ids, _, _ in epoch(loader)])
        return rest

    for (steps, _), rest in zip(first, on_ranks(ranks_of(two, 2), go_on, tmp_path), strict=True):
        for position, after in zip(positions, rest, strict=True):
            assert len(after) > 0
            assert after == steps[position + 1 :]


def test_resume_on_other_nodes_is_refused_on_other_ranks_a_node_not(
    two: list[Built], three: list[Built], tmp_path: Path
) -> None:
    def state(rank: int, root: Path) -> Any:
        loader = open_loader(root)
        next(iter(loader))
        return loader.state_dict()

    saved = on_ranks(ranks_of(two, 2), state, tmp_path)[0]

    def load(rank: int, root: Path) -> Any:
        open_loader(root).load_state_dict(saved)

    for error in on_ranks(ranks_of(three, 2), load, tmp_path):
        assert isinstance(error, ConfigMismatchError)
        assert "nodes: the state has 2, this loader 3" in str(error)

    def one_rank_a_node(rank: int, root: Path) -> Any:
        loader = open_loader(root, batch_size=2 * BATCH)
        loader.load_state_dict(saved)
        return [sorted(batch["sequence_ids"].tolist()) for batch in loader]

    def two_ranks_a_node(rank: int, root: Path) -> Any:
        loader = open_loader(root)
        loader.load_state_dict(saved)
        return [batch["sequence_ids"].tolist() for batch in loader]

    wide = on_ranks(ranks_of(two, 1), one_rank_a_node, tmp_path)
    narrow = on_ranks(ranks_of(two, 2), two_ranks_a_node, tmp_path)
    for node in range(2):
        together = [sorted(a + b) for a, b in
                    zip(narrow[2 * node], narrow[2 * node + 1], strict=True)]  # fmt: skip
        assert together == wide[node]


def report(rank: int, number: int, *, nodes: int = 2, sources: str = SOURCES,
           tokens: str = "f0", index: str = "", **settings: Any) -> PartitionReport:  # fmt: skip
    """What a rank says of a partition."""
    spec = spec_of(sequence_length=LENGTH, compression="none", shard_samples=4, fingerprint=tokens)
    partition = NodePartition(rank=number, nodes=nodes, sources=sources)
    return PartitionReport(f"rank {rank}", partition, spec, index or f"hash {number}", 50, settings)


@pytest.mark.parametrize(("reports", "said"), [
    ([report(0, 0, nodes=3), report(2, 2, nodes=3)],
     "Of 3 partitions these are missing: 1; there are 0 (rank 0), 2 (rank 2)"),
    ([report(0, 0), report(1, 0)], "Of 2 partitions these are missing: 1"),
    ([report(0, 0), report(2, 1, sources="1" * 32)], "do not fit together: sources: rank 0 '000"),
    ([report(0, 0), report(2, 1, tokens="f1")], "tokenizer.fingerprint: rank 0 'f0', rank 2 'f1'"),
    ([report(0, 0), report(2, 1, nodes=3)], "nodes: rank 0 2, rank 2 3"),
    ([report(0, 0, packing="best_fit"), report(2, 1, x=1)], "packing: rank 0 'best_fit', rank 2"),
    ([report(0, 0), report(2, 0, index="other")], "both hold partition 0, with different content"),
    ([report(0, 0), report(2, 1)._replace(partition=None)], "rank 2 reads a dataset that is no"),
])  # fmt: skip
def test_what_does_not_fit(reports: list[PartitionReport], said: str) -> None:
    with pytest.raises(ConfigMismatchError, match=re.escape(said)):
        require_one_group(reports)


def test_what_does_not_fit_is_refused_everywhere(two: list[Built], tmp_path: Path) -> None:
    def open_it(rank: int, root: Path) -> Any:
        open_loader(root, node_local=True, **({"shuffle_seed": 7} if rank > 1 else {}))

    for error in on_ranks(ranks_of(two, 2), open_it, tmp_path):
        assert isinstance(error, ConfigMismatchError)
        assert "shuffle_seed: rank 0 9176, rank 2 7" in str(error)


class TestWithoutAGroup:
    """Ranks from arguments, and a folder with everybody's manifest."""

    @pytest.fixture
    def manifests(self, three: list[Built], tmp_path: Path) -> Path:
        folder = tmp_path / "manifests"
        for number, partition in enumerate(three):
            (folder / f"host{number}").mkdir(parents=True)
            shutil.copy(partition.root / MANIFEST, folder / f"host{number}")
        return folder

    def loader(self, three: list[Built], manifests: Path, rank: int) -> StreamingTokenLoader:
        return open_loader(three[rank // 2].root, node_local=manifests, dp_rank=rank,
                           dp_world_size=6)  # fmt: skip

    def test_every_sequence_once(self, three: list[Built], manifests: Path) -> None:
        found, steps = [], set()
        for rank in range(6):
            loader = self.loader(three, manifests, rank)
            ids = [ids for ids, _, _ in epoch(loader)]
            steps.add(len(ids))
            found += [(rank // 2, n) for step in ids for n in step if n >= 0]
        assert len(steps) == 1
        assert len(found) == len(set(found))
        sizes = [len(partition.streams["train"]) // LENGTH for partition in three]
        assert sum(sizes) - 12 < len(found) <= sum(sizes)

    def test_what_is_missing(self, three: list[Built], manifests: Path) -> None:
        shutil.rmtree(manifests / "host1")
        with pytest.raises(ConfigMismatchError, match="missing: 1;"):
            self.loader(three, manifests, 0)
        shutil.rmtree(manifests / "host0")
        shutil.rmtree(manifests / "host2")
        with pytest.raises(UsageError, match="holds no manifest"):
            self.loader(three, manifests, 0)

    def test_ranks_must_be_on_the_node_of_their_partition(
        self, three: list[Built], manifests: Path
    ) -> None:
        with pytest.raises(UsageError, match="Rank 2 of 6 is on node 1 of 3, but .* partition 0"):
            open_loader(three[0].root, node_local=manifests, dp_rank=2, dp_world_size=6)
        with pytest.raises(UsageError, match="partition 0: 2, partition 1: 1"):
            open_loader(three[0].root, node_local=manifests, dp_rank=0, dp_world_size=4)


def test_a_partition_is_never_taken_for_the_whole(two: list[Built]) -> None:
    ranks = {"dp_rank": 0, "dp_world_size": 1}
    with pytest.raises(UsageError, match="one partition of several"):
        open_loader(two[0].root, **ranks)
    alone = open_loader(two[0].root, node_local=False, **ranks)
    assert alone.dataset.node_group is None
    assert len(epoch(alone)) > 0


def test_one_pass_an_epoch_of_one_dataset(two: list[Built]) -> None:
    with pytest.raises(UsageError, match="epoch_size"):
        open_loader(two[0].root, epoch_size=100, dp_rank=0, dp_world_size=1)
    with pytest.raises(UsageError, match="domain_by= counts what all ranks get"):
        open_loader(two[0].root, domain_by="folder", dp_rank=0, dp_world_size=1)


def test_a_partition_is_one_of_its_nodes() -> None:
    with pytest.raises(ValueError, match="contradicts itself in rank"):
        NodePartition(rank=2, nodes=2, sources=SOURCES)
