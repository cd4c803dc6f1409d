"""From a cursor to a state that can be saved, and back, with every check between."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streaming_ext.checkpoint.state import LoaderState, StreamState
from streaming_ext.dataset.index import TokenIndex
from streaming_ext.sampler.epoch_plan import Cursor, EpochPlan
from streaming_ext.sampler.node_local import NodeGroup
from streaming_ext.sampler.schedule import Schedule


def resume_of(
    node_group: NodeGroup | None,
    plan: EpochPlan,
    indexes: Sequence[TokenIndex],
    *,
    settings: Mapping[str, Any],
    lanes: int,
) -> "Resume":
    """What states are made of, whether a rank reads all the data or its node's share.

    Args:
        node_group: of the shares, None where there are none.
        plan: the order.
        indexes: of the streams.
        settings: see `Resume`.
        lanes: canonical nodes.
    """
    if node_group is None:
        fingerprints = tuple(index.index_hash for index in indexes)
        return Resume(plan=plan, settings=settings, fingerprints=fingerprints, lanes=lanes)
    return Resume(plan=plan, settings={**settings, "nodes": len(node_group.sequences)},
                  fingerprints=(node_group.fingerprint,), lanes=lanes)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Resume:
    """What states of one dataset are made of.

    Attributes:
        plan: the order.
        settings: every argument that decides which sequence a step holds.
        fingerprints: of the streams.
        lanes: canonical nodes.
    """

    plan: EpochPlan
    settings: Mapping[str, Any]
    fingerprints: tuple[str, ...]
    lanes: int

    def state_of(self, cursor: Cursor) -> LoaderState:
        """The state at a cursor."""
        plan = self.plan
        amounts = zip(
            self.fingerprints, plan.choose, cursor.before, plan.drawn(cursor), strict=True
        )
        state = LoaderState(
            epoch=cursor.epoch,
            sequences=cursor.place,
            order={
                **self.settings,
                "num_canonical_nodes": self.lanes,
                "epoch_size": plan.epoch_size,
                "drop_last": plan.drop_last,
                "global_batch": plan.global_batch,
            },
            streams=tuple(
                StreamState(fingerprint=fingerprint, choose=choose, before=before, drawn=drawn)
                for fingerprint, choose, before, drawn in amounts
            ),
        )
        if state.tokens(plan.length) == cursor.tokens:
            return state
        return replace(state, tokens_before=cursor.tokens)

    def cursor_of(self, state: Mapping[str, Any], *, allow_changes: Collection[str]) -> Cursor:
        """The cursor that a state stands for, when its order is this one.

        Where the streams or the size of an epoch were allowed to change, a new epoch begins in
        which each stream goes on from its own count.

        Raises:
            ConfigMismatchError: a setting that decides the order differs and is not allowed to.
        """
        old = LoaderState.from_dict(state)
        now = self.state_of(self.plan.start(0))
        old.require_same(now, allow_changes=allow_changes)
        if old.deals_out_as(now):
            cursor = Cursor(
                epoch=old.epoch,
                place=old.sequences,
                before=tuple(stream.before for stream in old.streams),
                tokens=old.tokens(self.plan.length),
            )
            if self.plan.steps_left(cursor) == 0:  # saved behind the last step of an epoch
                cursor = self.plan.next_epoch(cursor)
            return cursor
        drawn = {stream.fingerprint: stream.drawn for stream in old.streams}
        row = self.plan.row
        before = [-(-drawn.get(stream.fingerprint, 0) // row) * row for stream in now.streams]
        length = Schedule.whole(old.order["sequence_length"], name="sequence_length").largest
        tokens = old.tokens(length) + old.sequences * length
        return Cursor(epoch=old.epoch + (old.sequences > 0), place=0, before=tuple(before),
                      tokens=tokens)  # fmt: skip
