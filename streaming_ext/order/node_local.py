"""Training in which each node holds its own partition of the data.

The manifest of each node's dataset names its partition and the number of all partitions. Ranks read
only the partition of their node. Before the first step all ranks compare what they hold, and refuse
partitions that are missing, held twice, or made from other sources or settings.

    partitions of 5 and 7 sequences on two nodes, steps of 4 sequences, 2 from each node
    each node reads ceil(7 / 2) = 4 steps; on node 0 positions 5 to 7 hold no sequence
    with drop_last, each node reads 7 // 2 = 3 steps; on node 0 position 5 holds none
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from streaming_ext.base.arrays import Ints, ceil_div
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.format.index import TokenIndex
from streaming_ext.format.manifest import NodePartition
from streaming_ext.format.reading import manifest_of
from streaming_ext.format.schema import content_hash
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.order import OrderSpec
from streaming_ext.order.ranks import DataRank, RankPosition, gather, has_group
from streaming_ext.order.state import Cursor
from streaming_ext.order.steps import Schedule, StepSizes


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGroup:
    """All partitions together, and the position of this rank among them.

    Attributes:
        rank: the rank among the ranks of its node.
        sequences: sequences of each partition: (nodes,).
        fingerprint: the hash of all partitions in their order.
    """

    rank: DataRank
    sequences: tuple[int, ...]
    fingerprint: str

    def identity(self) -> dict[str, Any]:
        """Return the number of partitions, as a state names it."""
        return {"nodes": self.nodes}

    @property
    def nodes(self) -> int:
        """The number of partitions."""
        return len(self.sequences)


class NodePlan(EpochPlan):
    """The sequences of every step of one rank, out of its node's partition.

    Positions are counted per node, and an epoch is one pass over the partition. Epochs are equally
    long on all nodes, so a shorter partition ends with positions that hold no sequence. With
    `drop_last`, the last short step of the longest partition is left out.
    """

    def __init__(
        self,
        spec: OrderSpec,
        *,
        bounds: Sequence[Ints],
        group: NodeGroup,
        steps: StepSizes,
        drop_last: bool,
        left_out: Sequence[Ints] | None = None,
    ) -> None:
        """Lay out the partition of this node; see `EpochPlan` for the arguments.

        Raises:
            UsageError: an epoch is less than one step, or steps change their size.
        """
        if steps.change:
            raise UsageError(
                "Partitions of nodes are read in steps of one size: give batch_size and "
                "sequence_length as numbers, or pass node_local=False."
            )
        batch = steps.global_batch.largest // group.nodes
        # The longest partition decides the steps of an epoch on every node.
        longest = max(group.sequences)
        count = longest // batch if drop_last else ceil_div(longest, batch)
        self._partitions = group.sequences
        super().__init__(
            spec,
            bounds=bounds,
            choose=[count * batch],
            steps=StepSizes(Schedule.of_integers(batch, name="global_batch"), steps.length),
            rank=group.rank,
            drop_last=drop_last and min(group.sequences) >= count * batch,
            left_out=left_out,
        )
        self.sizes = (sum(self._partitions),)
        self._own = int(self.orders.sizes[0])
        self.filled = min(self._own, self.epoch_size)

    def tokens_of(self, positions: int) -> int:
        """Count the tokens of all partitions; positions past the end of a partition have none."""
        return self.length * sum(min(positions, count) for count in self._partitions)

    def seen(self, cursor: Cursor) -> tuple[int, ...]:
        """Count the sequences of all partitions up to a cursor."""
        return (self.tokens_seen(cursor) // self.length,)

    def _first_draws(self, cursor: Cursor) -> tuple[int, ...]:
        return (cursor.epoch * self._own,)


class PartitionReport(NamedTuple):
    """The report of one rank, or of one node's manifest, on its partition.

    Attributes:
        origin: the name of its origin in messages: `rank 3`, or a file.
        partition: the partition and the number of all partitions; None for a whole dataset.
        spec: the settings that decided its bytes.
        index_hash: the content hash of its index: the identity of the data.
        sequences: sequences in the partition.
        settings: arguments that decide the order.
    """

    origin: str
    partition: NodePartition | None
    spec: DatasetSpec | None
    index_hash: str
    sequences: int
    settings: Mapping[str, Any]

    @property
    def number(self) -> int:
        """The number of the partition; -1 for a whole dataset."""
        return -1 if self.partition is None else self.partition.rank

    @property
    def common(self) -> Mapping[str, Any]:
        """The values that must be equal in all reports, besides `spec`."""
        own = {} if self.partition is None else self.partition.model_dump(exclude={"rank"})
        return {**own, **self.settings}


def find_node_group(
    indexes: Sequence[TokenIndex],
    position: RankPosition,
    *,
    rank: DataRank,
    sequences: int,
    settings: Mapping[str, Any],
) -> NodeGroup:
    """Find the group of partitions to which this dataset belongs.

    Args:
        indexes: the indexes of the streams.
        position: the position among nodes and ranks that the user gives.
        rank: the rank among all data-parallel ranks.
        sequences: sequences of this partition.
        settings: every argument that decides the order; must be the same on all ranks.

    Raises:
        UsageError: other arguments exclude partitions, no group or folder of manifests is given, or
            ranks are not spread evenly over the partitions.
        ConfigMismatchError: partitions are missing, held twice, or do not match.
    """
    index, node_local = indexes[0], position.node_local
    manifest = index.manifest
    if len(indexes) > 1 or "epoch_size" in settings:
        raise UsageError(
            "Partitions of nodes are read as one dataset, a whole pass per epoch: leave out "
            "streams= and epoch_size=, or pass node_local=False."
        )
    if "domain_by" in settings:
        raise UsageError(
            "domain_by= counts what all ranks get, and no node has the lists of documents of the "
            "others: leave it out, or pass node_local=False."
        )
    own = PartitionReport(
        f"rank {rank.rank}",
        None if manifest is None else manifest.node_partition,
        None if manifest is None else manifest.spec,
        index.index_hash,
        sequences,
        settings,
    )
    if isinstance(node_local, str | Path):
        if {"packing", "exclude"} & settings.keys():
            raise UsageError(
                "No manifest says how many rows another partition has with packing or exclude: "
                "pass node_local=True and call torch.distributed.init_process_group first."
            )
        known = _from_manifests(Path(node_local), index.split, settings)
        partitions = require_one_group([own, *known])
        nodes = len(partitions)
        # Launchers number the ranks node by node.
        owners = [number * nodes // rank.size for number in range(rank.size)]
        if owners[rank.rank] != own.number:
            raise UsageError(
                f"Rank {rank.rank} of {rank.size} is on node {owners[rank.rank]} of {nodes}, but "
                f"the dataset is partition {own.number}. Number the ranks node by node, or call "
                "torch.distributed.init_process_group and pass node_local=True."
            )
    else:
        mesh = position.device_mesh
        reports = _from_ranks(
            own, rank, position.process_group if mesh is None else mesh.get_group()
        )
        partitions = require_one_group(reports)
        owners = [report.number for report in reports]
    counts = Counter(owners)
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"partition {number}: {counts[number]}" for number in sorted(counts))
        raise UsageError(
            f"Each partition must be read by equally many ranks, but {listed}. Is one partition on "
            "two nodes? Start equally many ranks on each node, each with its own partition."
        )
    return NodeGroup(
        rank=DataRank(rank=owners[: rank.rank].count(own.number), size=counts[own.number]),
        sequences=tuple(report.sequences for report in partitions),
        fingerprint=content_hash("\n".join(report.index_hash for report in partitions).encode()),
    )


def _from_ranks(own: PartitionReport, rank: DataRank, group: Any) -> list[PartitionReport]:
    """Gather the reports of all data-parallel ranks, in their order."""
    if rank.size == 1 and not (own.partition and own.partition.nodes > 1) and not has_group():
        return [own]
    reports = gather(
        rank,
        own,
        group,
        why="The dataset is one partition of several, and the nodes must compare theirs."
        "\n  1. Call torch.distributed.init_process_group before making the dataset."
        "\n  2. Pass node_local=FOLDER, a folder that holds every node's manifest.json."
        "\n  3. Pass node_local=False to read this partition alone, as any dataset.",
    )
    for number, same in enumerate(reports):
        if any(other != same[0] for other in same):
            raise ConfigMismatchError(
                f"Several processes are data-parallel rank {number}, with other data or settings."
            )
    return [same[0] for same in reports]


def _from_manifests(folder: Path, split: str, settings: Mapping[str, Any]) -> list[PartitionReport]:
    """Make a report from each manifest in a folder, as if a rank read it with these settings."""
    reports = []
    for file in sorted(file for file in folder.rglob("*.json") if file.is_file()):
        manifest = manifest_of(file.read_bytes(), where=str(file))
        if split not in manifest.splits:
            raise ConfigMismatchError(f"{file}: this partition has no split {split!r}.")
        summary, spec = manifest.splits[split], manifest.spec
        sequences = summary.samples * spec.sequence_length // settings["sequence_length"]
        partition, digest = manifest.node_partition, summary.index.xxh128
        reports.append(PartitionReport(str(file), partition, spec, digest, sequences, settings))
    if not reports:
        raise UsageError(f"{folder} holds no manifest: copy each node's manifest.json into it.")
    return reports


def require_one_group(reports: Sequence[PartitionReport]) -> list[PartitionReport]:
    """Choose one report per partition, in their order; refuse reports that do not match.

    Raises:
        ConfigMismatchError: reports differ, or partitions are missing; the message names them.
    """
    first = reports[0]
    partitions: dict[int, PartitionReport] = {}
    for report in reports:
        if report.partition is None:
            raise ConfigMismatchError(
                f"{report.origin} reads a dataset that is no partition of several, others do. Make "
                "it with --node-rank and --nodes, or pass node_local=False everywhere."
            )
        if problem := _differences(first, report):
            raise ConfigMismatchError(
                f"{first.origin} and {report.origin} do not fit together: {problem}."
            )
        known = partitions.setdefault(report.number, report)
        if known.index_hash != report.index_hash:
            raise ConfigMismatchError(
                f"{known.origin} and {report.origin} both hold partition {report.number}, with "
                f"different content: index {known.index_hash} and {report.index_hash}."
            )
    nodes = range(first.partition.nodes if first.partition else 0)
    if missing := [str(number) for number in nodes if number not in partitions]:
        found = ", ".join(f"{each.number} ({each.origin})" for each in partitions.values())
        raise ConfigMismatchError(
            f"Of {len(nodes)} partitions these are missing: {', '.join(missing)}; there are "
            f"{found}. Start a rank on every node, or make the partitions for fewer nodes."
        )
    return [partitions[number] for number in nodes]


def _differences(one: PartitionReport, other: PartitionReport) -> str:
    """Name the values that must be equal in two reports but differ."""
    lines = []
    if one.spec and other.spec:
        lines = one.spec.differences(other.spec, ours=one.origin, theirs=other.origin)
    lines += [
        f"{name}: {one.origin} {ours!r}, {other.origin} {theirs!r}"
        for name in sorted({*one.common, *other.common})
        if (ours := one.common.get(name)) != (theirs := other.common.get(name))
    ]
    return "; ".join(lines)
