"""A state with any value changed or removed is refused, and loading it changes nothing."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest

from streaming_ext import TokenStream
from streaming_ext.base.errors import ConfigMismatchError, DatasetError, UsageError
from tests.streaming_ext.loading import saved

REMOVED = object()
OTHER_VALUES = (REMOVED, math.inf, -math.inf, math.nan, "", None, -1, 2.5, "x", [], 10**400)


def positions(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a state."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    for name, each in value.items() if isinstance(value, dict) else ():
        yield (*path, name)
        yield from positions(each, (*path, name))


def damages(state: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield copies of a state, each with one value changed or removed."""
    for path in positions(state):
        *above, name = path
        for change in (*OTHER_VALUES, 1, 4):
            damaged = copy.deepcopy(state)
            holder: Any = damaged
            for each in above:
                holder = holder[each]
            if change is REMOVED:
                del holder[name]
            else:
                more = type(holder[name]) is int and change in (1, 4)
                holder[name] = holder[name] + change if more else change
            if damaged != state:
                yield f"{path}: {change!r}", damaged


def test_a_damaged_state_is_refused_and_changes_nothing(raw, load) -> None:
    """The state has two streams in the second epoch, counts, and steps that were smaller before."""
    settings = {
        "local": None,
        "epoch_size": 120,
        "domain_by": "folder",
        "max_repeated_ngram": 3,
        "streams": [TokenStream(local=raw.root, proportion=share) for share in (0.7, 0.3)],
    }
    before = load(**settings)
    before.skip(len(before) + 13)
    loader = load(**settings, batch_size=8)
    loader.load_state_dict(saved(before), allow_changes=["global_batch"])
    loader.skip(2)
    state = saved(loader)
    assert {"domains", "masked", "past"} <= state.keys()

    def held() -> Any:
        return copy.deepcopy((loader.state_dict(), loader.dataset.state_dict(), loader.achieved()))

    untouched, refused = held(), 0
    for said, damaged in damages(state):
        left = repr(damaged)
        for target in (loader, loader.dataset):
            with pytest.raises((ConfigMismatchError, DatasetError, UsageError)):
                target.load_state_dict(damaged)
                pytest.fail(said)
        assert repr(damaged) == left, said
        refused += 1
        if refused % 20 == 0:
            assert held() == untouched, said
    assert held() == untouched
    assert refused > 300
