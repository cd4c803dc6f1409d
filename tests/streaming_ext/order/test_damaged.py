"""States that were damaged are told so; those of earlier versions stay good."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from streaming_ext import StreamingTokenLoader
from streaming_ext.base.errors import ConfigMismatchError

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def state(open_raw) -> dict[str, Any]:
    """Of epoch 1, behind three steps."""
    loader = StreamingTokenLoader(open_raw())
    loader.skip(len(loader) + 3)
    found: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return found


def of_stream(**changes: Any) -> Change:
    return lambda state: state["streams"][0].update(changes)


def of_state(**changes: Any) -> Change:
    return lambda state: state.update(changes)


def of_order(**changes: Any) -> Change:
    return lambda state: state["order"].update(changes)


DAMAGES = {
    "epoch as text": of_state(epoch="0"),
    "epoch as truth": of_state(epoch=True),
    "epoch below 0": of_state(epoch=-1),
    "epoch too large": of_state(epoch=1 << 70),
    "epoch 0 behind an epoch": of_state(epoch=0),
    "epoch 1 behind nothing": of_stream(before=0, drawn=12),
    "place beyond the epoch": of_state(sample_in_epoch=10**9),
    "place beyond the epoch, drawn too": lambda state: (
        of_state(sample_in_epoch=10**9)(state), of_stream(drawn=585 + 10**9)(state)
    )[0],
    "place as fraction": of_state(sample_in_epoch=2.5),
    "place that was not drawn": of_state(sample_in_epoch=16),
    "before below 0": of_stream(before=-100),
    "before missing": of_stream(before=None),
    "drawn too little": of_stream(drawn=7),
    "drawn too much": of_stream(drawn=700),
    "more missed than drawn": of_stream(missed=600),
    "choose as text": of_stream(choose="585"),
    "a fingerprint that is none": of_stream(fingerprint=3),
    "tokens below 0": of_state(tokens_before=-5),
    "tokens as text": of_state(tokens_before="5"),
    "no tokens before": of_state(tokens_before=0),
    "no streams": of_state(streams=[]),
    "streams that are none": of_state(streams=None),
    "a stream that is none": of_state(streams=["a"]),
    "an order that is none": of_state(order=[1]),
    "an order that is text": of_state(order="abc"),
    "no epoch size": of_order(epoch_size=None),
    "no length": lambda state: state["order"].pop("sequence_length"),
    "a length that is none": of_order(sequence_length="x"),
    "grown in no step": of_state(grown={"pass": 0, "steps": []}),
    "grown in steps that are none": of_state(grown={"pass": 0, "steps": [["a"]]}),
    "grown in no pass": of_state(grown={"steps": [["a", 3]]}),
    "grown backwards": of_state(grown={"pass": 1, "steps": [["a", 9], ["b", 3]]}),
    "grown that is none": of_state(grown=3),
    "a past that is none": of_state(past=3),
    "a past of no steps": of_state(past={"steps": [[0, 4, 8]], "reordered": 0}),
    "a past of half a row": of_state(past={"steps": [[1, 3, 4]], "reordered": 0}),
    "a past of more than came": of_state(past={"steps": [[9, 4, 8]], "reordered": 0}),
    "a past beyond its place": of_state(past={"steps": [], "reordered": 13}),
    "a past without an order": of_state(past={"steps": []}),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_told(open_raw, state, damage: Change) -> None:
    damage(state)
    left = copy.deepcopy(state)
    loader = StreamingTokenLoader(open_raw())
    everything = ["streams", *loader.state_dict()["order"]]
    with pytest.raises(ConfigMismatchError, match=r"^The state is damaged: "):
        loader.load_state_dict(state, allow_changes=everything)
    assert state == left
    assert (loader.epoch, loader.step) == (0, 0)


def test_a_place_within_a_step_is_told_where_steps_change(open_raw, state) -> None:
    state["order"]["global_batch"] = 5
    with pytest.raises(ConfigMismatchError, match="damaged: it is not what was saved"):
        StreamingTokenLoader(open_raw()).load_state_dict(state, allow_changes=["global_batch"])


def test_the_same_state_undamaged(open_raw, state) -> None:
    loader = StreamingTokenLoader(open_raw())
    loader.load_state_dict(state)
    assert (loader.epoch, loader.step) == (1, 3)
