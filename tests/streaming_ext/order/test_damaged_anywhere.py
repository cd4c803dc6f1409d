"""Each value of a state, changed or removed: it is refused, or training continues as before."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import ConfigMismatchError, DatasetError, UsageError
from tests.streaming_ext.build import Built
from tests.streaming_ext.order.test_grown import generations  # noqa: F401 - a fixture

Open = Callable[[], StreamingTokenLoader]
Saved = tuple[Open, dict[str, Any]]
_NO_COUNTS = (math.inf, -math.inf, math.nan, "", None, -1, 2.5, "x", [], 10**400)


def positions(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything in a state."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    for name, each in value.items() if isinstance(value, dict) else ():
        yield (*path, name)
        yield from positions(each, (*path, name))


def damages(state: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A state with each of its values changed or removed."""
    for path in positions(state):
        *above, name = path
        for change in ("removed", *_NO_COUNTS, "one more", "a step more"):
            damaged = copy.deepcopy(state)
            holder: Any = damaged
            for each in above:
                holder = holder[each]
            if change == "removed":
                del holder[name]
            elif change in ("one more", "a step more"):
                if type(holder[name]) is not int:
                    continue
                holder[name] += 1 if change == "one more" else 4
            else:
                holder[name] = change
            yield f"{path}: {change!r}", damaged


def order(loader: StreamingTokenLoader) -> list[Any]:
    """What is left of the epoch, and where it stands."""
    plan, cursor = loader.dataset.plan, loader._cursor
    steps = [plan.step_of_all_ranks(cursor, step) for step in range(plan.steps_left(cursor))]
    return [np.array(steps).tolist(), loader.epoch]


def here(loader: StreamingTokenLoader) -> Any:
    """What a refused state must not change."""
    return copy.deepcopy((loader.state_dict(), loader.dataset.state_dict(), loader.achieved()))


def saved(loader: StreamingTokenLoader) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


def opened(streams: list[TokenStream], **options: Any) -> Open:
    settings = {"batch_size": 4, "shuffle": True, "shuffle_seed": 5, "shuffle_block_size": 8,
                "num_canonical_nodes": 2, "dp_rank": 0, "dp_world_size": 1}  # fmt: skip
    return lambda: StreamingTokenLoader(
        StreamingTokenDataset(streams=streams, **settings | options)
    )


@pytest.fixture
def mixture(raw: Built) -> Saved:
    """Two streams with proportions, in the second epoch."""
    streams = [TokenStream(local=raw.root, proportion=proportion) for proportion in (0.7, 0.3)]
    make = opened(streams, epoch_size=120)
    loader = make()
    loader.skip(len(loader) + 13)
    return make, saved(loader)


@pytest.fixture
def counted(raw: Built) -> Saved:
    """With accounts of domains and of masked rows, and steps that were smaller before."""
    extras = {"domain_by": "folder", "max_repeated_ngram": 3, "extras": ["sequence_ids"]}
    small = opened([TokenStream(local=raw.root)], **extras)()
    running = iter(small)
    for _ in range(5):
        next(running)
    make = opened([TokenStream(local=raw.root)], **extras | {"batch_size": 8})
    loader = make()
    loader.load_state_dict(saved(small), allow_changes=["global_batch"])
    loader.skip(2)
    return make, saved(loader)


def grown(roots: list[Path], steps: int) -> Saved:
    old, make = (opened([TokenStream(local=root)]) for root in roots[:2])
    before, after = old(), make()
    before.skip(steps)
    after.load_state_dict(saved(before), extend_state=True)
    after.skip(3)
    return make, saved(after)


@pytest.fixture
def grown_in_pass_0(generations: list[Path]) -> Saved:  # noqa: F811
    """Of a dataset that was extended in its first pass."""
    return grown(generations, 9)


@pytest.fixture
def grown_in_pass_2(generations: list[Path]) -> Saved:  # noqa: F811
    """Of a dataset that was extended later: passes before it were shorter."""
    return grown(generations, 2 * len(opened([TokenStream(local=generations[0])])()) + 9)


@pytest.mark.parametrize("kind", ["mixture", "counted", "grown_in_pass_0", "grown_in_pass_2"])
def test_a_damaged_value_never_changes_the_order(kind: str, request: pytest.FixtureRequest) -> None:
    make, state = request.getfixturevalue(kind)
    loader = make()
    loader.load_state_dict(state)
    wanted = order(loader)
    fresh = make()
    untouched, refused = here(fresh), 0
    for said, damaged in damages(state):
        for target in (fresh, fresh.dataset):
            left = copy.deepcopy(damaged)
            try:
                target.load_state_dict(damaged)
            except (ConfigMismatchError, DatasetError, UsageError):
                refused += 1
            else:
                if target is fresh:
                    assert order(fresh) == wanted, said
                fresh = make()
                break
            finally:
                assert repr(damaged) == repr(left), said
            assert here(fresh) == untouched, said
    assert refused > 100


def test_a_count_of_domains_that_is_none(counted: Saved) -> None:
    make, state = counted
    tokens = state["domains"]["streams"][0]["tokens"]
    for wrong in (math.inf, math.nan, "", -1):
        tokens[min(tokens)] = wrong
        loader = make()
        before = here(loader)
        with pytest.raises(ConfigMismatchError, match="The state is damaged"):
            loader.load_state_dict(state)
        assert here(loader) == before
