"""Training where each node holds its own share: who holds what, told between the nodes and checked.

Each node's dataset is an ordinary one whose manifest says which share of how many it is. Ranks read
the share of their node and no other; before the first step all of them compare what they hold, so
that a missing share, one that is there twice, or one made otherwise is refused by all at once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.index import TokenIndex
from streaming_ext.errors import UsageError
from streaming_ext.sampler.batching import Batching
from streaming_ext.sampler.cursor import Cursor
from streaming_ext.sampler.epoch_plan import EpochPlan
from streaming_ext.sampler.grown.grown_pass import Earlier
from streaming_ext.sampler.nodes.node_cards import (
    Card,
    from_group,
    from_manifests,
    number_of,
    require_one_group,
)
from streaming_ext.sampler.orders.mixing import Mixing
from streaming_ext.sampler.orders.order import OrderSpec
from streaming_ext.sampler.rank_slices import RankSlices
from streaming_ext.sampler.ranks import DataRank
from streaming_ext.sampler.stages import StepSizes


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGroup:
    """All shares together, and the place of this rank among them.

    Attributes:
        rank: among the ranks of its node.
        node: number of the share.
        sequences: of each share: (nodes,).
        fingerprint: of all shares in their order.
    """

    rank: DataRank
    node: int
    sequences: tuple[int, ...]
    fingerprint: str

    def steps(self, batch: int, *, drop_last: bool) -> int:
        """Steps of an epoch, the same on every node, for `batch` sequences a node and step.

        The longest share decides; ranks of the others fill up. With `drop_last` its last short
        step is left out, and so less than one global batch of all sequences is.
        """
        rounded = [count // batch if drop_last else -(-count // batch) for count in self.sequences]
        return max(rounded)

    def fills_up(self, batch: int, steps: int) -> bool:
        """Whether some node has rows without a sequence in an epoch of so many steps."""
        return min(self.sequences) < steps * batch

    def left_out(self, batch: int, steps: int) -> int:
        """Sequences of all shares that an epoch of so many steps does not hold."""
        return sum(max(0, count - steps * batch) for count in self.sequences)


class NodePlan(EpochPlan):
    """The sequences of every step of one rank, out of its node's share.

    Places count the node's own; each epoch is one pass over the share. An epoch is as long on
    every node, so behind its last sequence a shorter share has places that hold none.
    """

    def __init__(
        self,
        spec: OrderSpec,
        *,
        bounds: Ints,
        node_group: NodeGroup,
        slices: RankSlices,
        drop_last: bool,
        left_out: list[Ints] | None = None,
        length: int = 1,
    ) -> None:
        """See `EpochPlan` for the arguments.

        Raises:
            UsageError: an epoch is less than one step.
        """
        batch = slices.global_batch
        steps = node_group.steps(batch, drop_last=drop_last)
        fills_up = node_group.fills_up(batch, steps)
        self._shares = node_group.sequences
        super().__init__(
            spec,
            bounds=[bounds],
            choose=[steps * batch],
            slices=slices,
            drop_last=drop_last and not fills_up,
            left_out=left_out,
            length=length,
        )
        self.sizes = (sum(self._shares),)
        self._own = int(bounds[-1])
        self.filled = min(self._own, self.epoch_size)

    def tokens_of(self, places: int) -> int:
        """Of the sequences of all shares: behind its last one a shorter share has none."""
        return self.length * sum(min(places, count) for count in self._shares)

    def seen(self, cursor: Cursor) -> tuple[int, ...]:
        """Sequences of all shares up to a place."""
        return (self.tokens_seen(cursor) // self.length,)

    def _first_draw(self, cursor: Cursor, stream: int) -> int:
        return cursor.epoch * self._own

    def _look_up(self, cursor: Cursor, places: Ints) -> tuple[Ints, Ints]:
        draws = cursor.epoch * self._own + places
        return np.zeros_like(places), self._orders[0].sequences(draws)


def plan_of(
    node_group: NodeGroup | None,
    spec: OrderSpec,
    *,
    bounds: list[Ints],
    choose: list[int],
    slices: RankSlices,
    drop_last: bool,
    left_out: list[Ints] | None = None,
    batching: Batching = Batching(),  # noqa: B008 - it is frozen
    length: int = 1,
    sizes: StepSizes | None = None,
    mixing: Mixing | None = None,
    earlier: Sequence[Earlier] = (),
) -> EpochPlan:
    """The plan of a rank of a node_group, or an ordinary one where there is none."""
    if node_group is None:
        return EpochPlan(
            spec,
            bounds=bounds,
            choose=choose,
            slices=slices,
            drop_last=drop_last,
            left_out=left_out,
            batching=batching,
            length=length,
            sizes=sizes,
            mixing=mixing,
            earlier=earlier,
        )
    if sizes is not None:
        raise UsageError(
            "Shares of nodes are read in steps of one size: give batch_size and sequence_length as "
            "numbers, or pass node_local=False."
        )
    return NodePlan(
        spec,
        bounds=bounds[0],
        node_group=node_group,
        slices=slices,
        drop_last=drop_last,
        left_out=left_out,
        length=length,
    )


def find_node_group(
    indexes: Sequence[TokenIndex],
    *,
    node_local: bool | str | Path | None,
    rank: DataRank,
    sequences: int,
    settings: Mapping[str, Any],
    whole_epochs: bool,
    domain_by: str | None,
    mesh: Any,
    group: Any,
) -> NodeGroup | None:
    """The group of nodes that these data are a share of, None where they stand for themselves.

    Args:
        indexes: of the streams.
        node_local: what the user says; None leaves it to the manifest.
        rank, sequences, settings: see `join`.
        whole_epochs: no other size was asked for.
        domain_by: what tokens are counted by.
        mesh, group: where the data-parallel ranks are; neither for torch's default group.

    Raises:
        UsageError: it cannot be combined with what else is asked for, or as `join`.
        ConfigMismatchError: as `join`.
    """
    shared = any(index.manifest is not None and index.manifest.share for index in indexes)
    if node_local is False or (node_local is None and not shared):
        return None
    if len(indexes) > 1 or not whole_epochs:
        raise UsageError(
            "Shares of nodes are read one dataset and one whole pass an epoch: leave out streams= "
            "and epoch_size=, or pass node_local=False."
        )
    if domain_by is not None:
        raise UsageError(
            "domain_by= counts what all ranks get, and no node has the lists of documents of the "
            "others: leave it out, or pass node_local=False."
        )
    manifests = Path(node_local) if isinstance(node_local, str | Path) else None
    if manifests is not None and {"packing", "exclude"} & settings.keys():
        raise UsageError(
            "How many rows other shares have with packing or exclude stands in no manifest: pass "
            "node_local=True and call torch.distributed.init_process_group first."
        )
    return join(
        indexes[0],
        rank=rank,
        sequences=sequences,
        settings=settings,
        group=mesh.get_group() if mesh is not None else group,
        manifests=manifests,
    )


def join(
    index: TokenIndex,
    *,
    rank: DataRank,
    sequences: int,
    settings: Mapping[str, Any],
    group: Any,
    manifests: Path | None,
) -> NodeGroup:
    """Find out who holds which share.

    Args:
        index: of this node's dataset.
        rank: among all data-parallel ranks.
        sequences: that this share holds.
        settings: every argument that decides the order; must be the same on all ranks.
        group: torch process group of the data-parallel ranks, None for the default one.
        manifests: a folder with `manifest.json` of every node, in files or folders of any name;
            asked in place of the group.

    Raises:
        UsageError: there is neither, or ranks are not spread evenly over the shares.
        ConfigMismatchError: shares are missing, there twice, or do not fit together.
    """
    share = None if index.manifest is None else index.manifest.share
    own = Card(
        place=f"rank {rank.rank}",
        share=share,
        spec=None if index.manifest is None else index.manifest.spec,
        index_hash=index.index_hash,
        sequences=sequences,
        settings=dict(settings),
    )
    if manifests is None:
        cards = from_group(own, rank, group)
        shares = require_one_group(cards)
        places = [number_of(card) for card in cards]
    else:
        known = from_manifests(manifests, split=index.split, length=settings["sequence_length"])
        shares = require_one_group([own, *known], each_once=known)
        places = _in_blocks(rank, nodes=len(shares), own=number_of(own))
    node = number_of(own)
    counts = Counter(places)
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"share {number}: {counts[number]}" for number in sorted(counts))
        raise UsageError(
            f"Each share must be read by as many ranks, but {listed}. Is one share on two nodes? "
            "Start as many ranks on each node, each node with its own share."
        )
    mine = [number for number, place in enumerate(places) if place == node]
    return NodeGroup(
        rank=DataRank(rank=mine.index(rank.rank), size=len(mine)),
        node=node,
        sequences=tuple(card.sequences for card in shares),
        fingerprint=content_hash("\n".join(card.index_hash for card in shares).encode()),
    )


def _in_blocks(rank: DataRank, *, nodes: int, own: int) -> list[int]:
    """The share of each rank where launchers number the ranks node by node."""
    if rank.size % nodes:
        raise UsageError(f"{rank.size} ranks cannot be spread evenly over {nodes} nodes.")
    each = rank.size // nodes
    if rank.rank // each != own:
        raise UsageError(
            f"Rank {rank.rank} of {rank.size} is on node {rank.rank // each} of {nodes}, but the "
            f"dataset here is share {own}. Number the ranks node by node, or let them tell each "
            "other: torch.distributed.init_process_group, and node_local=True."
        )
    return [number // each for number in range(rank.size)]
