"""What a state says, checked against itself: nothing goes on from one that was damaged."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from streaming_ext.errors import UsageError
from streaming_ext.sampler.batching import Batching
from streaming_ext.sampler.schedule import Schedule

if TYPE_CHECKING:
    from streaming_ext.checkpoint.state import LoaderState

_MOST: Final = 1 << 60  # of anything that is counted


def count_of(value: object) -> int:
    """A count as a state holds it.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"{value!r} must be a whole number, at least 0")
    return value


def contradiction_in(state: "LoaderState") -> str | None:
    """What cannot be in a state that a loader saved; None where nothing is wrong."""
    try:
        return next(_of_types(state), None) or next(_of_counts(state), None)
    except (KeyError, TypeError, ValueError, UsageError) as error:
        return f"{error!r}"


def _of_types(state: "LoaderState") -> Iterator[str]:
    """Values that are no counts, or no text."""
    counts: dict[str, Any] = {
        "epoch": state.epoch,
        "sample_in_epoch": state.sequences,
        "epoch_size": state.order.get("epoch_size"),
    }
    if state.tokens_before is not None:
        counts["tokens_before"] = state.tokens_before
    for number, stream in enumerate(state.streams):
        if not isinstance(stream.fingerprint, str):
            yield f"the fingerprint of stream {number} is {stream.fingerprint!r}"
        for name in ("choose", "before", "drawn", "missed"):
            counts[f"{name} of stream {number}"] = getattr(stream, name)
    for name, value in counts.items():
        try:
            count_of(value)
        except ValueError as error:
            yield f"{name}: {error}"
    if not state.streams:
        yield "it has no stream"
    try:
        _ = state.longest
    except (KeyError, UsageError, TypeError) as error:
        yield f"sequence_length: {error}"
    if state.past is not None:
        yield from _of_past(state.past)
    if state.grown is not None:
        yield from _of_growth(state.grown, streams=len(state.streams))


def _of_past(past: Any) -> Iterator[str]:
    """Of an epoch in which settings were changed, what says nothing of how it was."""
    steps: Any = past.get("steps") if isinstance(past, Mapping) else None
    whole = (
        isinstance(steps, list | tuple)
        and all(isinstance(each, list | tuple) and len(each) == 3 for each in steps)
        and all(type(count) is int and 0 < count < _MOST for each in steps for count in each)
        and type(past.get("reordered")) is int
    )
    if not whole:
        yield f"past is {past!r}, and must tell the steps that came"


def _of_growth(grown: Any, *, streams: int) -> Iterator[str]:
    """Of a pass that grew, what says nothing of how it did."""
    steps: Any = grown.get("steps") if isinstance(grown, Mapping) else None
    whole = (
        streams == 1
        and isinstance(steps, list | tuple)
        and len(steps) > 0
        and all(isinstance(step, list | tuple) and len(step) == 2 for step in steps)
        and all(
            type(count) is int and 0 <= count < _MOST
            for count in (grown.get("pass"), *(seen for _, seen in steps))
        )
    )
    if not whole:
        yield f"grown is {grown!r}, and must name a pass of one stream and its steps"
    elif [seen for _, seen in steps] != sorted(seen for _, seen in steps):
        yield f"grown is {grown!r}, whose steps go backwards"


def _of_counts(state: "LoaderState") -> Iterator[str]:
    """Counts that contradict each other."""
    size, place = state.order["epoch_size"], state.sequences
    if place > size:
        yield f"{place} sequences of an epoch of {size}"
    if state.past is not None:
        runs = [
            (steps, *divmod(batch * length, state.longest))
            for steps, batch, length in state.past["steps"]
        ]
        held = sum(steps * rows for steps, rows, _ in runs)
        if any(over or not rows for _, rows, over in runs) or held > place:
            yield f"past is {state.past!r}, which {place} sequences do not hold"
        if not 0 <= state.past["reordered"] <= place:
            yield f"past is {state.past!r}, at {place} sequences"
    for number, stream in enumerate(state.streams):
        if not stream.missed <= stream.before <= stream.drawn:
            yield f"stream {number} has drawn {stream.drawn}, {stream.before} of them before"
    inside = sum(stream.drawn - stream.before for stream in state.streams)
    if abs(inside - place) > _most_in_hand(state):
        yield f"{place} sequences of the epoch came, its streams have drawn {inside}"
    if bool(state.epoch) != bool(state.tokens(1)):
        yield f"epoch {state.epoch} begins behind {state.tokens(1)} tokens"


def _most_in_hand(state: "LoaderState") -> int:
    """How far draws may be from places: several streams are dealt out in whole rows."""
    if len(state.streams) == 1:
        return 0
    batch = Schedule.whole(state.order["global_batch"], name="global_batch").largest
    batching = Batching.parse(state.order.get("batching_method", "random"))
    row = batching.row(global_batch=batch, lanes=count_of(state.order["num_canonical_nodes"]))
    return len(state.streams) * row
