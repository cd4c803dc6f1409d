"""Each node with its own partition, in real gloo processes: each sequence once, or a refusal."""

import itertools
import re
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.base.errors import ConfigMismatchError, ShardmillError, UsageError
from streaming_ext.format.layout import MANIFEST
from streaming_ext.format.manifest import NodePartition
from streaming_ext.format.schema import to_json
from streaming_ext.order.node_local import PartitionReport, require_one_group
from tests.streaming_ext.build import Built, build_some, spec_of
from tests.streaming_ext.loading import saved, sequences
from tests.streaming_ext.processes import in_processes, join_group

LENGTH = 8
BATCH = 2
SOURCES = "0" * 32
SETTINGS: dict[str, Any] = {
    "batch_size": BATCH,
    "shuffle": True,
    "shuffle_block_size": 20,
    "extras": ["sequence_ids", "targets"],
}


def make_partitions(folder: Path, documents: Sequence[int]) -> list[Built]:
    """Make partitions of different sizes, each in a folder of its node."""
    found = []
    for rank, count in enumerate(documents):
        built = build_some(folder / f"node{rank}" / "data", count, seed=rank)
        partition = NodePartition(rank=rank, nodes=len(documents), sources=SOURCES)
        manifest = built.manifest.model_copy(update={"node_partition": partition})
        (built.root / MANIFEST).write_bytes(to_json(manifest))
        found.append(built)
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    return make_partitions(tmp_path_factory.mktemp("two"), [60, 50])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Built]:
    return make_partitions(tmp_path_factory.mktemp("three"), [40, 55, 20])


Task = Callable[[int, Path], Any]


def on_ranks(folders: Sequence[Path], task: Task, tmp_path: Path) -> list[Any]:
    """Return the result of `task` on each rank, or its error; rank r gets folder r only."""
    store = tmp_path / f"store{len(list(tmp_path.glob('store*')))}"

    def work(rank: int) -> Any:
        join_group(store, rank, len(folders))
        try:
            return task(rank, folders[rank])
        except ShardmillError as error:
            return error

    return in_processes(len(folders), work)


def ranks_of(partitions: Sequence[Built], each: int) -> list[Path]:
    """Return the folder of each rank, node by node."""
    return [partition.root for partition in partitions for _ in range(each)]


def open_loader(root: Path, **changes: Any) -> StreamingTokenLoader:
    return StreamingTokenLoader(StreamingTokenDataset(local=root, **(SETTINGS | changes)))


class Step(NamedTuple):
    """The sequences of a rank in a step, and the tokens and the state after it."""

    epoch: int
    sequences: list[int]
    rows: list[list[int]]
    real: list[bool]
    tokens: int
    state: dict[str, Any]


def train(rank: int, root: Path, *, epochs: int = 1, state: Any = None, **changes: Any) -> Any:
    """Return the steps of some epochs, the usage, and the number of sequences per node."""
    loader = open_loader(root, **changes)
    if state is not None:
        loader.load_state_dict(state)
    steps = [
        Step(
            loader.epoch,
            batch["sequence_ids"].tolist(),
            batch["tokens"].tolist(),
            batch["real"].tolist() if "real" in batch else [True] * BATCH,
            loader.tokens_seen,
            saved(loader),
        )
        for _ in range(epochs)
        for batch in loader
    ]
    group = loader.dataset.nodes
    return steps, loader.achieved()[0], group and group.sequences


def together(*answers: Any) -> list[list[int]]:
    """Return the sorted sequences of some ranks for each step."""
    steps = zip(*(steps for steps, _, _ in answers), strict=True)
    return [sorted(itertools.chain(*(each.sequences for each in ranks))) for ranks in steps]


@pytest.mark.parametrize(("nodes", "drop_last"), [(2, True), (3, False)])
def test_every_sequence_once_over_the_nodes_and_resumed(
    nodes, drop_last, two, three, tmp_path
) -> None:
    """All ranks resume from the state of rank 0, as in training, even among the fillers."""
    partitions = two if nodes == 2 else three
    folders = ranks_of(partitions, 2)
    answers = on_ranks(folders, partial(train, epochs=3, drop_last=drop_last), tmp_path)
    sizes = [len(partition.streams["train"]) // LENGTH for partition in partitions]
    assert len(set(sizes)) == nodes  # the partitions differ in size
    assert all(held == tuple(sizes) for _, _, held in answers)
    seen = [[], [], []]  # (node, sequence) per epoch
    tokens = 0
    for together in zip(*(steps for steps, _, _ in answers), strict=True):  # else training hangs
        for rank, step in enumerate(together):
            stream = partitions[rank // 2].streams["train"]
            for sequence, row, real in zip(step.sequences, step.rows, step.real, strict=True):
                if real:
                    assert row == stream[sequence * LENGTH :][:LENGTH].tolist()
                    seen[step.epoch].append((rank // 2, sequence))
                    tokens += LENGTH
                else:
                    assert sequence == -1
        for step in together:  # every rank counts all ranks, without fillers
            assert step.tokens == tokens
            assert step.state == together[0].state
    first = [[step for step in steps if step.epoch == 0] for steps, _, _ in answers]
    everything = {(node, number) for node, size in enumerate(sizes) for number in range(size)}
    for found in seen:
        assert len(found) == len(set(found))
        left_out = [max(0, size - len(first[0]) * 2 * BATCH) for size in sizes]
        assert len(everything - set(found)) == sum(left_out) < (2 * BATCH * nodes * drop_last or 1)
    assert seen[0] != seen[1]
    for _, usage, _ in answers:
        assert usage.tokens == tokens
        assert usage.passes == pytest.approx(tokens / LENGTH / sum(sizes))
    for position in (1, len(first[0]) // 2, len(first[0]) - 2):
        resume = partial(train, state=first[0][position].state, drop_last=drop_last)
        for (rest, _, _), steps in zip(on_ranks(folders, resume, tmp_path), first, strict=True):
            assert rest == steps[position + 1 :] != []


def test_resume_on_other_nodes_is_refused_on_other_ranks_a_node_not(two, three, tmp_path) -> None:
    narrow = on_ranks(ranks_of(two, 2), train, tmp_path)
    state = narrow[0][0][0].state
    for error in on_ranks(ranks_of(three, 2), partial(train, state=state), tmp_path):
        assert isinstance(error, ConfigMismatchError)
        assert "nodes: the state has 2, this loader 3" in str(error)
    wide = on_ranks(ranks_of(two, 1), partial(train, state=state, batch_size=2 * BATCH), tmp_path)
    for node in range(2):
        assert together(wide[node]) == together(*narrow[2 * node : 2 * node + 2])[1:]


def report(
    rank: int,
    number: int,
    *,
    nodes: int = 2,
    sources: str = SOURCES,
    tokens: str = "f0",
    index: str = "",
    **settings: Any,
) -> PartitionReport:
    """Build what a rank reports about its partition."""
    spec = spec_of(sequence_length=LENGTH, compression="none", shard_samples=4, fingerprint=tokens)
    partition = NodePartition(rank=number, nodes=nodes, sources=sources)
    return PartitionReport(f"rank {rank}", partition, spec, index or f"hash {number}", 50, settings)


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        (
            [report(0, 0, nodes=3), report(2, 2, nodes=3)],
            "Of 3 partitions these are missing: 1; there are 0 (rank 0), 2 (rank 2)",
        ),
        ([report(0, 0), report(1, 0)], "Of 2 partitions these are missing: 1"),
        (
            [report(0, 0), report(2, 1, sources="1" * 32)],
            "do not fit together: sources: rank 0 '000",
        ),
        (
            [report(0, 0), report(2, 1, tokens="f1")],
            "tokenizer.fingerprint: rank 0 'f0', rank 2 'f1'",
        ),
        ([report(0, 0), report(2, 1, nodes=3)], "nodes: rank 0 2, rank 2 3"),
        (
            [report(0, 0, packing="best_fit"), report(2, 1, x=1)],
            "packing: rank 0 'best_fit', rank 2",
        ),
        (
            [report(0, 0), report(2, 0, index="other")],
            "both hold partition 0, with different content",
        ),
        (
            [report(0, 0), report(2, 1)._replace(partition=None)],
            "rank 2 reads a dataset that is no",
        ),
    ],
)
def test_what_does_not_fit(reports, said) -> None:
    with pytest.raises(ConfigMismatchError, match=re.escape(said)):
        require_one_group(reports)


def test_what_does_not_fit_is_refused_everywhere(two, tmp_path) -> None:
    def open_it(rank: int, root: Path) -> Any:
        open_loader(root, node_local=True, shuffle_seed=7 if rank > 1 else 9176)

    for error in on_ranks(ranks_of(two, 2), open_it, tmp_path):
        assert isinstance(error, ConfigMismatchError)
        assert "shuffle_seed: rank 0 9176, rank 2 7" in str(error)


class TestWithoutAGroup:
    """The rank comes from arguments, and a folder holds the manifest of every node."""

    @pytest.fixture
    def manifests(self, three, tmp_path) -> Path:
        folder = tmp_path / "manifests"
        for number, partition in enumerate(three):
            (folder / f"host{number}").mkdir(parents=True)
            shutil.copy(partition.root / MANIFEST, folder / f"host{number}")
        return folder

    def loader(self, three: list[Built], manifests: Path, rank: int) -> StreamingTokenLoader:
        return open_loader(
            three[rank // 2].root, node_local=manifests, dp_rank=rank, dp_world_size=6
        )

    def test_every_sequence_once(self, three, manifests) -> None:
        of_ranks = [sequences(self.loader(three, manifests, rank)) for rank in range(6)]
        assert len({len(steps) for steps in of_ranks}) == 1
        found = [
            (rank // 2, number)
            for rank, steps in enumerate(of_ranks)
            for number in itertools.chain(*steps)
            if number >= 0
        ]
        assert len(found) == len(set(found))
        sizes = [len(partition.streams["train"]) // LENGTH for partition in three]
        assert sum(sizes) - 12 < len(found) <= sum(sizes)

    def test_what_is_missing(self, three, manifests) -> None:
        shutil.rmtree(manifests / "host1")
        with pytest.raises(ConfigMismatchError, match="missing: 1;"):
            self.loader(three, manifests, 0)
        shutil.rmtree(manifests / "host0")
        shutil.rmtree(manifests / "host2")
        with pytest.raises(UsageError, match="holds no manifest"):
            self.loader(three, manifests, 0)

    def test_ranks_must_be_on_the_node_of_their_partition(self, three, manifests) -> None:
        with pytest.raises(UsageError, match="Rank 2 of 6 is on node 1 of 3, but .* partition 0"):
            open_loader(three[0].root, node_local=manifests, dp_rank=2, dp_world_size=6)
        with pytest.raises(UsageError, match="partition 0: 2, partition 1: 1"):
            open_loader(three[0].root, node_local=manifests, dp_rank=0, dp_world_size=4)


def test_a_partition_is_never_taken_for_the_whole_or_counted_otherwise(two) -> None:
    for changes, said in (
        ({}, "one partition of several"),
        ({"epoch_size": 100}, "epoch_size"),
        ({"domain_by": "folder"}, "domain_by= counts what all ranks get"),
    ):
        with pytest.raises(UsageError, match=said):
            open_loader(two[0].root, dp_rank=0, dp_world_size=1, **changes)
    alone = open_loader(two[0].root, node_local=False, dp_rank=0, dp_world_size=1)
    assert alone.dataset.nodes is None
    assert sequences(alone)


def test_a_partition_is_one_of_its_nodes() -> None:
    with pytest.raises(ValueError, match="contradicts itself in rank"):
        NodePartition(rank=2, nodes=2, sources=SOURCES)
