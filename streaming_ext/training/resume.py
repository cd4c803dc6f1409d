"""From a cursor to a state that can be saved, and back, with every check between."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.order.epoch_plan import Cursor, EpochPlan
from streaming_ext.order.growth import Growth
from streaming_ext.order.node_local import NodeGroup
from streaming_ext.order.schedule import Schedule
from streaming_ext.order.state import LoaderState, SavedGrowth, SavedSizes, StreamState
from streaming_ext.order.steps import PastSizes, StepSizes
from streaming_ext.reading.cache import ShardCache


def resume_of(
    node_group: NodeGroup | None,
    plan: EpochPlan,
    caches: Sequence[ShardCache],
    *,
    settings: Mapping[str, Any],
) -> "Resume":
    """What states are made of, whether a rank reads all the data or its node's share.

    Args:
        node_group: of the shares, None where there are none.
        plan: the order.
        caches: of the streams.
        settings: see `Resume`.
    """
    if node_group is None:
        fingerprints = tuple(cache.index.index_hash for cache in caches)
        return Resume(plan=plan, settings=settings, fingerprints=fingerprints)
    return Resume(
        plan=plan,
        settings={**settings, "nodes": node_group.nodes},
        fingerprints=(node_group.fingerprint,),
    )


@dataclass(frozen=True, kw_only=True)
class Resume:
    """What states of one dataset are made of.

    Attributes:
        plan: the order.
        settings: every argument that decides which sequence a step holds, see
            `OrderSettings.named`.
        fingerprints: of the streams.
    """

    plan: EpochPlan
    settings: Mapping[str, Any]
    fingerprints: tuple[str, ...]

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
        grown, past = cursor.grown, cursor.past
        by_streams = sum(cursor.before) * plan.length
        return LoaderState(
            epoch=cursor.epoch,
            sequences=cursor.position,
            order={
                **self.settings,
                "epoch_size": plan.epoch_size,
                "drop_last": plan.drop_last,
                "global_batch": plan.steps.global_batch.named,
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
            tokens_before=None if cursor.tokens == by_streams else cursor.tokens,
            grown=None if grown is None else self._saved_growth(grown),
            past=None
            if past is None
            else SavedSizes(
                global_batch=str(past.sizes.global_batch),
                sequence_length=str(past.sizes.length),
                until=past.until,
            ),
        )

    def _saved_growth(self, growth: Growth) -> SavedGrowth:
        earlier = self.plan.grown.earlier
        steps = tuple((earlier[number].fingerprint, seen) for number, seen in growth.steps)
        return SavedGrowth(number=growth.number, steps=steps)

    def cursor_of(
        self,
        state: Mapping[str, Any],
        *,
        allow_changes: Collection[str],
        extend_state: bool = False,
    ) -> Cursor:
        """Where training goes on from a state; see `place_of`."""
        return self.going_on(
            self.saved_cursor(state, allow_changes=allow_changes, extend_state=extend_state)
        )

    def going_on(self, place: Cursor) -> Cursor:
        """The same, or the next epoch, where no step is left of the place's."""
        return place if self.plan.steps_left(place) else self.plan.next_epoch(place)

    def saved_cursor(
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
        old = LoaderState.from_dict(state)
        now = self.state_of(self.plan.start(0))
        generation = self._generation_of(old)
        if generation is not None and extend_state:
            if state.get("worker") is not None:
                raise UsageError(
                    "The state is of a worker of a StatefulDataLoader: it goes on in the "
                    "generation that it was saved in alone. Save one of StreamingTokenLoader to go "
                    "on in the newest."
                )
            return self._extended(old, now, generation, allow_changes=allow_changes)
        if generation is not None and "streams" not in allow_changes:
            raise ConfigMismatchError(
                "The state is of an older generation of this dataset, which was extended since. "
                "Either (1) go on in the newest one, with what was not seen of the pass and the "
                "new documents: load_state_dict(state, extend_state=True); or (2) stay in the "
                "older one: TokenStream(..., generation=...) with the hash that `shardmill "
                "inspect` tells."
            )
        old.require_same(now, allow_changes=allow_changes)
        if not old.deals_out_as(now):
            return self._new_epoch(old, now)
        old.require_same_order(now)
        return Cursor(
            epoch=old.epoch,
            position=old.sequences,
            before=tuple(stream.before for stream in old.streams),
            tokens=old.tokens(self.plan.length),
            grown=self._growth_of(old),
            past=self._past_of(old),
            missed=tuple(stream.missed for stream in old.streams),
        )

    def _generation_of(self, state: LoaderState) -> int | None:
        """The number of the older generation that a state is of, None where it is of none."""
        own = [stream.fingerprint for stream in state.streams]
        earlier = enumerate(self.plan.grown.earlier)
        return next((number for number, each in earlier if [each.fingerprint] == own), None)

    def _growth_of(self, state: LoaderState) -> Growth | None:
        """How a state's pass grew.

        Raises:
            ConfigMismatchError: it names a generation that the dataset does not have.
        """
        if state.grown is None:
            return None
        numbers = {each.fingerprint: n for n, each in enumerate(self.plan.grown.earlier)}
        try:
            steps = tuple((numbers[fingerprint], seen) for fingerprint, seen in state.grown.steps)
        except KeyError as error:
            raise ConfigMismatchError(
                f"The state went through a generation that this dataset does not have: {error}."
            ) from error
        return Growth(number=state.grown.number, steps=steps)

    def _past_of(self, old: LoaderState) -> PastSizes | None:
        """The sizes of the steps that came of a state's epoch, where those of here are others."""
        place, tokens = old.sequences, old.tokens(old.longest)
        if place in (0, old.order["epoch_size"]):  # what is left is another epoch
            return None
        sizes, begin, past = _sizes(old.order), 0, None
        if old.past is not None:
            begin = old.past.until
            past = PastSizes(_sizes(old.past.model_dump()), begin)
        came, planned = (
            each.phases(position=begin, end=place, tokens=tokens)
            for each in (sizes, self.plan.steps)
        )
        if came == planned:
            return past
        if past is not None:
            sizes = past.sizes.then(tokens + begin * old.longest, sizes)
        return PastSizes(sizes, place)

    def _extended(
        self,
        old: LoaderState,
        now: LoaderState,
        generation: int,
        *,
        allow_changes: Collection[str],
    ) -> Cursor:
        """Where a state of an older generation stands in the newest one.

        What the pass had seen there is the beginning of the same pass here; behind it come what the
        pass had left and the new sequences. At the end of a pass only the new ones are left of it.

        Args:
            old: the state.
            now: of the newest generation, at its beginning.
            generation: number of the older one.
            allow_changes: settings that may differ.

        Raises:
            ConfigMismatchError: a setting that decides the order differs, or which sequence has
                which number: then nothing tells which of the new ones the pass had seen.
        """
        before, size = self.plan.grown.earlier[generation].size, self.plan.sizes[0]
        # An epoch is all of the data unless the user says otherwise: then it grew as they did.
        sizes = (old.order.get("epoch_size"), now.order.get("epoch_size"))
        grows = {"epoch_size"} if sizes == (before, size) else set()
        old.require_same(now, allow_changes={"streams", *grows, *allow_changes})
        if old.numbering != now.numbering:
            raise ConfigMismatchError(
                f"The state is of an older generation, and of sequences of {old.longest} tokens "
                f"where these have {now.longest}, or of other rows (exclude, packing): "
                "extend_state=True counts sequences that stay what they are. Go on in the newest "
                "generation with the settings of the state first; a state that is saved there may "
                "then go on with others."
            )
        old.require_same_order(now)
        drawn = old.streams[0].drawn
        number, seen = divmod(drawn, before)
        if seen == 0 and old.sequences:
            number, seen = number - 1, before
        growth = None
        if seen:
            last = self._growth_of(old)
            steps = last.steps if last is not None and last.number == number else ()
            growth = Growth(number=number, steps=(*steps, (generation, seen)))
        return Cursor(
            epoch=old.epoch,
            position=old.sequences,
            before=(number * size + seen - old.sequences,),
            tokens=old.tokens(self.plan.length),
            grown=growth,
            past=self._past_of(old),
            missed=(number * size + seen - drawn + old.streams[0].missed,),
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
        row = gcd(self.plan.row, now.order["num_canonical_nodes"])
        before, missed = [], []
        for stream in now.streams:
            alike = counts.get(stream.fingerprint)
            own = alike.pop(0) if alike else stream
            before.append(-(-own.drawn * old.longest // (now.longest * row)) * row)
            missed.append(own.missed * old.longest // now.longest)
        growth = None
        same = len(before) == 1 and counts.keys() == {now.streams[0].fingerprint}
        if same and old.numbering == now.numbering:
            growth = self.plan.grown.still(self._growth_of(old), before[0])
        return Cursor(
            epoch=old.epoch + (old.sequences > 0),
            position=0,
            before=tuple(before),
            tokens=old.tokens(old.longest) + old.sequences * old.longest,
            grown=growth,
            missed=tuple(missed),
        )


def _sizes(order: Mapping[str, Any]) -> StepSizes:
    """The sizes of steps by what a state names of them."""
    return StepSizes(
        Schedule.of_integers(order["global_batch"], name="global_batch"),
        Schedule.of_integers(order["sequence_length"], name="sequence_length"),
    )
