"""What an epoch was before settings were changed in it, told from a state and to the next one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from streaming_ext.errors import ConfigMismatchError, UsageError
from streaming_ext.sampler.past import Past, PastSteps, past_steps
from streaming_ext.sampler.rank_slices import RankSlices
from streaming_ext.sampler.schedule import Schedule
from streaming_ext.sampler.stages import Stage, StepSizes

if TYPE_CHECKING:
    from streaming_ext.checkpoint.state import LoaderState

# Where these differ, the sequences of an epoch are the same in the same order.
_NO_ORDER: Final = {
    "global_batch",
    "sequence_length",
    "domain_by",
    "drop_last",
    "max_repeated_ngram",
}


def same_order(old: "LoaderState", now: "LoaderState") -> bool:
    """Whether the settings of two states put the sequences of an epoch in the same order."""
    named = {*old.order, *now.order} - _NO_ORDER
    return all(old.order.get(name) == now.order.get(name) for name in named)


def past_of(old: "LoaderState", now: "LoaderState") -> Past | None:
    """What came of a state's epoch that goes on with settings which may be others.

    Args:
        old: the state, whose places are those of `now`.
        now: of the loader that goes on.

    Raises:
        ConfigMismatchError: the state is damaged: it stands within a step.
    """
    told = past_read(old.past) or Past()
    place = old.sequences
    if place in (0, old.order["epoch_size"]):  # what is left is another epoch
        return None
    reordered = told.reordered if same_order(old, now) else place
    steps, begin = told.steps, told.places(old.longest)
    try:
        came = _stages(old, old, begin)
    except (KeyError, UsageError) as error:
        raise ConfigMismatchError(f"The state is damaged: {error}.") from error
    if (came[-1].end if came else begin) != place:
        raise ConfigMismatchError(
            f"The state is damaged: {place} sequences of its epoch are no whole number of "
            "steps. Resume from another checkpoint."
        )
    if past_steps(came) != past_steps(_stages(old, now, begin)):
        steps = (*steps, *past_steps(came))
    return Past(steps=steps, reordered=reordered) if steps or reordered else None


def past_read(told: Mapping[str, Any] | None) -> Past | None:
    """What a state says of it, None where nothing was changed in its epoch."""
    if told is None:
        return None
    steps = tuple(
        PastSteps(steps=steps, global_batch=batch, length=length)
        for steps, batch, length in told["steps"]
    )
    return Past(steps=steps, reordered=told["reordered"])


def past_told(past: Past | None) -> dict[str, Any] | None:
    """The same as it stands in a state."""
    if past is None:
        return None
    steps = [[each.steps, each.global_batch, each.length] for each in past.steps]
    return {"steps": steps, "reordered": past.reordered}


def _stages(old: "LoaderState", sizes: "LoaderState", begin: int) -> list[Stage]:
    """The steps between a place and that of a state, by the sizes of a state."""
    batch, length = (
        Schedule.whole(sizes.order[name], name=name) for name in ("global_batch", "sequence_length")
    )
    one_rank = RankSlices(batch_size=1, lanes=1, rank=0, num_ranks=1)
    sizes_of_steps = StepSizes(batch, length)
    return sizes_of_steps.stages(
        place=begin, end=old.sequences, tokens=old.tokens(old.longest), slices=one_rank
    )
