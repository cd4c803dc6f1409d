"""From a cursor to a state that can be saved, and back, with every check between."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from streaming_ext.checkpoint.changes import past_of, past_told, same_order
from streaming_ext.checkpoint.generations import (
    extended_cursor,
    generation_of,
    growth_of,
    refuse_older,
    require_whole,
    with_growth,
)
from streaming_ext.checkpoint.state import LoaderState, StreamState
from streaming_ext.errors import ConfigMismatchError
from streaming_ext.from_text.fingerprint import PREFIX, text_fingerprint
from streaming_ext.sampler.cursor import Cursor
from streaming_ext.sampler.epoch_plan import EpochPlan
from streaming_ext.sampler.nodes.node_local import NodeGroup
from streaming_ext.shards.cache import ShardCache


def resume_of(
    node_group: NodeGroup | None,
    plan: EpochPlan,
    caches: Sequence[ShardCache],
    *,
    settings: Mapping[str, Any],
    lanes: int,
) -> "Resume":
    """What states are made of, whether a rank reads all the data or its node's share.

    Args:
        node_group: of the shares, None where there are none.
        plan: the order.
        caches: of the streams.
        settings: see `Resume`.
        lanes: canonical nodes.
    """
    if node_group is None:
        fingerprints = tuple(cache.index.index_hash for cache in caches)
        return Resume(
            plan=plan,
            settings=settings,
            fingerprints=fingerprints,
            lanes=lanes,
            caches=tuple(caches),
        )
    return Resume(
        plan=plan,
        settings={**settings, "nodes": len(node_group.sequences)},
        fingerprints=(node_group.fingerprint,),
        lanes=lanes,
    )


@dataclass(frozen=True, kw_only=True)
class Resume:
    """What states of one dataset are made of.

    Attributes:
        plan: the order.
        settings: every argument that decides which sequence a step holds.
        fingerprints: of the streams.
        lanes: canonical nodes.
        caches: of the streams, where a state may be that of the text which they were made of.
    """

    plan: EpochPlan
    settings: Mapping[str, Any]
    fingerprints: tuple[str, ...]
    lanes: int
    caches: tuple[ShardCache, ...] = ()

    def state_of(self, cursor: Cursor) -> LoaderState:
        """The state at a cursor."""
        plan = self.plan
        amounts = zip(
            self.fingerprints,
            plan.choose,
            cursor.before,
            plan.drawn(cursor),
            cursor.missed,
            strict=True,
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
                StreamState(
                    fingerprint=fingerprint,
                    choose=choose,
                    before=before,
                    drawn=drawn,
                    missed=missed,
                )
                for fingerprint, choose, before, drawn, missed in amounts
            ),
        )
        state = replace(with_growth(state, cursor.grown, plan), past=past_told(cursor.past))
        if state.tokens(plan.length) == cursor.tokens:
            return state
        return replace(state, tokens_before=cursor.tokens)

    def cursor_of(
        self,
        state: Mapping[str, Any],
        *,
        allow_changes: Collection[str],
        extend_state: bool = False,
    ) -> Cursor:
        """Where training goes on from a state; see `place_of`."""
        return self.going_on(
            self.place_of(state, allow_changes=allow_changes, extend_state=extend_state)
        )

    def going_on(self, place: Cursor) -> Cursor:
        """The same, or the next epoch, where no step is left of the place's."""
        return place if self.plan.steps_left(place) else self.plan.next_epoch(place)

    def place_of(
        self,
        state: Mapping[str, Any],
        *,
        allow_changes: Collection[str],
        extend_state: bool = False,
    ) -> Cursor:
        """The cursor that a state stands for, when its order is this one.

        Where a change that was allowed has places of an epoch be other draws, a new epoch begins in
        which each stream goes on from its own count.

        Args:
            state: as it was saved.
            allow_changes: names of fields that may differ.
            extend_state: whether a state of an older generation goes on in this one.

        Raises:
            ConfigMismatchError: a setting that decides the order differs and is not allowed to.
        """
        read = LoaderState.from_dict(state)
        cursor = self._cursor_of(state, self._of_datasets(read), allow_changes, extend_state)
        read.require_unchanged()
        return cursor

    def _cursor_of(
        self,
        state: Mapping[str, Any],
        old: LoaderState,
        allow_changes: Collection[str],
        extend_state: bool,
    ) -> Cursor:
        now = self.state_of(self.plan.start(0))
        earlier = self.plan.grown.earlier
        generation = generation_of(old, earlier)
        if generation is not None and extend_state:
            require_whole(state)
            return extended_cursor(old, now, self.plan, generation, allow_changes=allow_changes)
        if generation is not None and "streams" not in allow_changes:
            raise refuse_older()
        old.require_same(now, allow_changes=allow_changes)
        if old.deals_out_as(now):
            cursor = Cursor(
                epoch=old.epoch,
                place=old.sequences,
                before=tuple(stream.before for stream in old.streams),
                tokens=old.tokens(self.plan.length),
                grown=growth_of(old.grown, earlier),
                past=past_of(old, now),
                missed=tuple(stream.missed for stream in old.streams),
            )
            if same_order(old, now):
                self._require_drawn(old, cursor)
            return cursor
        return self._new_epoch(old, now)

    def _require_drawn(self, old: LoaderState, cursor: Cursor) -> None:
        """Compare what a state says that was drawn with what the order draws up to its place.

        Raises:
            ConfigMismatchError: they differ.
        """
        drawn, told = self.plan.drawn(cursor), tuple(stream.drawn for stream in old.streams)
        if drawn != told:
            raise ConfigMismatchError(
                f"The state is damaged: its streams have drawn {told}, but {cursor.place} "
                f"sequences of epoch {cursor.epoch} draw {drawn}. Resume from another checkpoint."
            )
        if cursor.grown is not None:
            number, (_, seen) = cursor.grown.number, cursor.grown.steps[-1]
            first = number * self.plan.sizes[0]
            if not (first + seen <= drawn[0] and cursor.before[0] < first + self.plan.sizes[0]):
                raise ConfigMismatchError(
                    f"The state is damaged: it has drawn {drawn[0]}, which is not behind "
                    f"{seen} of pass {number}. Resume from another checkpoint."
                )

    def _new_epoch(self, old: LoaderState, now: LoaderState) -> Cursor:
        """The beginning of an epoch in which each stream goes on from its own count.

        Of a stream that is there twice, the first goes on from the first one's count. Counts are
        rounded up to rows of canonical nodes, where streams are dealt out in such; and those of
        sequences of another length to as many tokens.
        """
        counts: dict[str, list[StreamState]] = {}
        for stream in old.streams:
            counts.setdefault(stream.fingerprint, []).append(stream)
        row = gcd(self.plan.row, self.lanes)
        before, missed = [], []
        for stream in now.streams:
            alike = counts.get(stream.fingerprint)
            own = alike.pop(0) if alike else stream
            before.append(-(-own.drawn * old.longest // (now.longest * row)) * row)
            missed.append(own.missed * old.longest // now.longest)
        growth = None
        same = len(before) == 1 and counts.keys() == {now.streams[0].fingerprint}
        if same and old.numbering == now.numbering:
            earlier = self.plan.grown.earlier
            growth = self.plan.grown.still(growth_of(old.grown, earlier), before[0])
        return Cursor(
            epoch=old.epoch + (old.sequences > 0),
            place=0,
            before=tuple(before),
            tokens=old.tokens(old.longest) + old.sequences * old.longest,
            grown=growth,
            missed=tuple(missed),
        )

    def _of_datasets(self, state: LoaderState) -> LoaderState:
        """A state of texts as one of the datasets that were made of them, where they are these."""
        if len(state.streams) != len(self.caches):
            return state
        streams = [
            replace(stream, fingerprint=own)
            if stream.fingerprint.startswith(PREFIX)
            and not own.startswith(PREFIX)
            and text_fingerprint(cache) == stream.fingerprint
            else stream
            for stream, own, cache in zip(
                state.streams, self.fingerprints, self.caches, strict=True
            )
        ]
        return replace(state, streams=tuple(streams))
