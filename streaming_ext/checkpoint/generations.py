"""States of older generations of a dataset that was extended, in its newest one."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from streaming_ext.checkpoint.changes import past_of
from streaming_ext.checkpoint.state import LoaderState
from streaming_ext.errors import ConfigMismatchError, UsageError
from streaming_ext.sampler.cursor import Cursor
from streaming_ext.sampler.epoch_plan import EpochPlan
from streaming_ext.sampler.grown.grown_pass import Earlier, Growth


def growth_of(grown: Mapping[str, Any] | None, earlier: Sequence[Earlier]) -> Growth | None:
    """What a state says of how its pass grew.

    Raises:
        ConfigMismatchError: it is damaged, or names a generation that the dataset does not have.
    """
    if grown is None:
        return None
    numbers = {each.fingerprint: number for number, each in enumerate(earlier)}
    try:
        steps = tuple((numbers[fingerprint], int(seen)) for fingerprint, seen in grown["steps"])
        growth = Growth(number=int(grown["pass"]), steps=steps)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigMismatchError(
            f"The state went through a generation that this dataset does not have, or is damaged: "
            f"{error!r}."
        ) from error
    for number, seen in growth.steps:
        if not 0 < seen <= earlier[number].size:
            raise ConfigMismatchError(
                f"The state is damaged: it saw {seen} of the {earlier[number].size} sequences of a "
                "pass over an older generation. Resume from another checkpoint."
            )
    return growth


def growth_told(growth: Growth | None, earlier: Sequence[Earlier]) -> dict[str, Any] | None:
    """The same as it stands in a state."""
    if growth is None:
        return None
    steps = [[earlier[number].fingerprint, seen] for number, seen in growth.steps]
    return {"pass": growth.number, "steps": steps}


def generation_of(state: LoaderState, earlier: Sequence[Earlier]) -> int | None:
    """The number of the older generation that a state is of, None where it is of none."""
    if len(state.streams) != 1:
        return None
    own = state.streams[0].fingerprint
    return next((n for n, each in enumerate(earlier) if each.fingerprint == own), None)


def extended_cursor(
    old: LoaderState,
    now: LoaderState,
    plan: EpochPlan,
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
        plan: of the newest generation.
        generation: number of the older one.
        allow_changes: settings that may differ.

    Raises:
        ConfigMismatchError: a setting that decides the order differs, or which sequence has which
            number: then nothing tells which of the new ones the pass had seen.
    """
    earlier = plan.grown.earlier
    before, size = earlier[generation].size, plan.sizes[0]
    # An epoch is all of the data unless the user says otherwise: then it grew as they did.
    sizes = (old.order.get("epoch_size"), now.order.get("epoch_size"))
    grows = {"epoch_size"} if sizes == (before, size) else set()
    old.require_same(now, allow_changes={"streams", *grows, *allow_changes})
    if old.numbering != now.numbering:
        raise ConfigMismatchError(
            f"The state is of an older generation, and of sequences of {old.longest} tokens where "
            f"these have {now.longest}, or of other rows (exclude, packing): extend_state=True "
            "counts sequences that stay what they are. Go on in the newest generation with the "
            "settings of the state first; a state that is saved there may then go on with others."
        )
    drawn = old.streams[0].drawn
    number, seen = divmod(drawn, before)
    if seen == 0 and old.sequences:
        number, seen = number - 1, before
    growth = None
    if seen:
        last = growth_of(old.grown, earlier)
        steps = last.steps if last is not None and last.number == number else ()
        growth = Growth(number=number, steps=(*steps, (generation, seen)))
    return Cursor(
        epoch=old.epoch,
        place=old.sequences,
        before=(number * size + seen - old.sequences,),
        tokens=old.tokens(plan.length),
        grown=growth,
        past=past_of(old, replace(now, order={**now.order, "epoch_size": old.order["epoch_size"]})),
        missed=(number * size + seen - drawn + old.streams[0].missed,),
    )


def refuse_older() -> ConfigMismatchError:
    """What is said of a state of an older generation, where nothing was asked for."""
    return ConfigMismatchError(
        "The state is of an older generation of this dataset, which was extended since. Either (1) "
        "go on in the newest one, with what was not seen of the pass and the new documents: "
        "load_state_dict(state, extend_state=True); or (2) stay in the older one: "
        "TokenStream(..., generation=...) with the hash that `shardmill inspect` tells."
    )


def require_whole(state: Mapping[str, Any]) -> None:
    """Refuse a state of one worker: it tells not where the others stand.

    Raises:
        UsageError: it is one.
    """
    if state.get("worker") is not None:
        raise UsageError(
            "The state is of a worker of a StatefulDataLoader: it goes on in the generation that "
            "it was saved in alone. Save one of StreamingTokenLoader to go on in the newest."
        )


def with_growth(state: LoaderState, growth: Growth | None, plan: EpochPlan) -> LoaderState:
    """A state that says how its pass grew, where it did."""
    if growth is None:
        return state
    return replace(state, grown=growth_told(growth, plan.grown.earlier))
