"""Conversion of cursors to states that can be saved, and back, with all checks."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from streaming_ext.base.arrays import ceil_div
from streaming_ext.base.errors import ConfigMismatchError
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.state import Cursor, Growth, LoaderState, PastSizes, StreamState


@dataclass(frozen=True, kw_only=True)
class Resume:
    """The states of one dataset.

    Attributes:
        plan: the order.
        settings: every argument that decides which sequence a step holds, see `identity_of`.
        fingerprints: the fingerprint of each stream, or a single one for all partitions.
    """

    plan: EpochPlan
    settings: Mapping[str, Any]
    fingerprints: tuple[str, ...]

    def state_of(self, cursor: Cursor) -> LoaderState:
        """Return the state at a cursor."""
        plan = self.plan
        streams = {
            "fingerprint": self.fingerprints,
            "choose": plan.choose,
            "before": cursor.before,
            "drawn": plan.drawn(cursor),
            "missed": cursor.missed,
            "key": cursor.keys or (None,) * len(self.fingerprints),
        }
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
                StreamState(**dict(zip(streams, values, strict=True)))
                for values in zip(*streams.values(), strict=True)
            ),
            tokens_before=None if cursor.tokens == by_streams else cursor.tokens,
            grown=cursor.grown,
            past=cursor.past,
        )

    def resumed_at(self, cursor: Cursor) -> Cursor:
        """Return the cursor to resume at: the next epoch's start if no step of this one is left."""
        return cursor if self.plan.steps_left(cursor) else self.plan.next_epoch(cursor)

    def saved_cursor(
        self,
        state: Mapping[str, Any],
        *,
        allow_changes: Collection[str],
        extend_state: bool = False,
    ) -> Cursor:
        """Return the cursor of a state, after checking that its order is this one.

        If an allowed change gives positions of an epoch other draws, a new epoch begins, in which
        each stream continues from its own count.

        Args:
            state: the state as it was saved.
            allow_changes: names of fields that may differ.
            extend_state: True to let a state of an older generation resume in this one.

        Raises:
            ConfigMismatchError: a setting that decides the order differs and is not allowed to.
        """
        old = LoaderState.from_dict(state)
        if isinstance(allow_changes, str):
            allow_changes = [allow_changes]
        now = self.state_of(self.plan.start(0))
        earlier = self.plan.orders.earlier
        last = earlier.get(old.streams[0].fingerprint) if len(old.streams) == 1 else None
        if last is not None and extend_state:
            return self._extended(old, now, int(last[-1]), allow_changes=allow_changes)
        if last is not None and "streams" not in allow_changes:
            raise ConfigMismatchError(
                "The state is of an older generation of this dataset, which was extended since. "
                "Either (1) go on in the newest one, with what was not seen of the pass and the "
                "new documents: load_state_dict(state, extend_state=True); or (2) stay in the "
                "older one: TokenStream(..., generation=...) with the hash that `shardmill "
                "inspect` shows."
            )
        old.require_same(now, allow_changes=allow_changes)
        if old.allocation != now.allocation:
            return self._new_epoch(old, now)
        return self._same_epoch(old, now)

    def _same_epoch(self, old: LoaderState, now: LoaderState) -> Cursor:
        """Return the cursor at the position of a state whose epoch has the same draws."""
        old.require_same_order(now)
        return Cursor(
            epoch=old.epoch,
            position=old.sequences,
            before=tuple(stream.before for stream in old.streams),
            missed=tuple(stream.missed for stream in old.streams),
            tokens=old.tokens,
            grown=self._growth_of(old),
            past=self._past_of(old),
            keys=tuple(stream.key for stream in old.streams if stream.key is not None),
        )

    def _growth_of(self, state: LoaderState) -> Growth | None:
        """Return the growth of the pass of a state.

        Raises:
            ConfigMismatchError: the state names a generation that the dataset does not have.
        """
        for fingerprint, _ in state.grown.steps if state.grown else ():
            if fingerprint not in self.plan.orders.earlier:
                raise ConfigMismatchError(
                    "The state went through a generation that this dataset does not have: "
                    f"{fingerprint}."
                )
        return state.grown

    def _past_of(self, old: LoaderState) -> PastSizes | None:
        """Return the sizes of the steps of a state's epoch so far, if the plan has others."""
        if not old.inside:
            return None
        sizes, past = old.sizes, old.past
        begin = past.until if past else 0
        done, planned = (
            each.phases(position=begin, end=old.sequences, tokens=old.tokens)
            for each in (sizes, self.plan.steps)
        )
        if done == planned:
            return past
        if past is not None:
            sizes = past.sizes.then(old.tokens + begin * old.longest, sizes)
        return PastSizes(
            global_batch=str(sizes.global_batch),
            sequence_length=str(sizes.length),
            until=old.sequences,
        )

    def _extended(
        self,
        old: LoaderState,
        now: LoaderState,
        earlier: int,
        *,
        allow_changes: Collection[str],
    ) -> Cursor:
        """Return the cursor in the newest generation for a state of an older one.

        The same pass in the newest generation begins with the sequences that training received.
        The rest of the pass and the new sequences follow; at the end of a pass only the new ones.

        Args:
            old: the state.
            now: the state at the beginning of the newest generation.
            earlier: sequences of the older generation.
            allow_changes: names of settings that may differ.

        Raises:
            ConfigMismatchError: a setting that decides the order differs, or one that decides the
                numbers of sequences: then it is unknown which sequences the pass had seen.
        """
        size = self.plan.sizes[0]
        # By default an epoch is all of the data and grew with them: that is no change.
        sizes = (old.order.get("epoch_size"), now.order.get("epoch_size"))
        grows = {"epoch_size"} if sizes == (earlier, size) else set()
        old.require_same(now, allow_changes={"streams", *grows, *allow_changes})
        if old.numbering != now.numbering:
            raise ConfigMismatchError(
                f"The state is of an older generation, and of sequences of {old.longest} tokens "
                f"where these have {now.longest}, or of other rows (exclude, packing): "
                "extend_state=True counts sequences that stay what they are. Go on in the newest "
                "generation with the settings of the state first; a state that is saved then may "
                "resume with others."
            )
        cursor = self._same_epoch(old, now)
        (stream,) = old.streams
        number, seen = divmod(stream.drawn, earlier)
        if seen == 0 and old.sequences:
            number, seen = number - 1, earlier
        growth = None
        if seen:
            last = cursor.grown
            steps = last.steps if last is not None and last.number == number else ()
            growth = Growth(number=number, steps=(*steps, (stream.fingerprint, seen)))
        drawn = number * size + seen
        return replace(
            cursor,
            before=(drawn - old.sequences,),
            missed=(drawn - stream.drawn + stream.missed,),
            grown=growth,
        )

    def _new_epoch(self, old: LoaderState, now: LoaderState) -> Cursor:
        """Return the beginning of an epoch in which each stream continues from its own count.

        If a stream is listed twice, its first entry continues from the count of the first. Counts
        are rounded up to rows of canonical nodes, if streams are allocated in such rows. Counts of
        sequences of another length are converted to the same number of tokens.
        """
        counts: dict[str, list[StreamState]] = {}
        for index, stream in enumerate(old.streams):
            key = index if stream.key is None else stream.key
            held = stream.model_copy(update={"key": key})
            counts.setdefault(stream.fingerprint, []).append(held)
        row = gcd(self.plan.row, now.order["num_canonical_nodes"])
        before, missed, keys = [], [], []
        for index, stream in enumerate(now.streams):
            alike = counts.get(stream.fingerprint)
            own = alike.pop(0) if alike else stream
            before.append(ceil_div(own.drawn * old.longest, now.longest * row) * row)
            missed.append(own.missed * old.longest // now.longest)
            keys.append(index if own.key is None else own.key)
        growth = None
        same = len(before) == 1 and counts.keys() == {now.streams[0].fingerprint}
        if same and old.numbering == now.numbering:
            growth = self.plan.orders.growth_from(self._growth_of(old), before[0])
        return Cursor(
            epoch=old.epoch + (old.sequences > 0),
            position=0,
            before=tuple(before),
            tokens=old.tokens + old.sequences * old.longest,
            grown=growth,
            missed=tuple(missed),
            keys=tuple(keys) if keys != [*range(len(keys))] else (),
        )
