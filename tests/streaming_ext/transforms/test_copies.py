"""A sample belongs to who is given it: what is done to it shows in no other pass, nor a source."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from streaming_ext.transforms import CheckpointableDataset
from tests.streaming_ext.transforms.chains import plain

Chain = CheckpointableDataset


def source() -> list[dict[str, Any]]:
    return [{"id": n, "input_ids": [n], "turns": [{"said": ["a"]}], "ordered": OrderedDict(x=[1]),
             "pair": ([1], 2), "array": np.array([n]), "tensor": torch.tensor([n])}
            for n in range(5)]  # fmt: skip


def changed(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample itself, all of which is something else now."""
    sample["input_ids"].append(0)
    sample["turns"][0]["said"].append("b")
    sample["ordered"]["x"].append(2)
    sample["pair"][0].append(3)
    sample["array"] += 10
    sample["tensor"].add_(10)
    sample["more"] = sample.pop("id")
    return sample


def told(samples: Any) -> list[str]:
    """As texts, which nothing changes later."""
    return [repr(plain(sample)) for sample in samples]


THREAD = {"executor_type": "thread", "max_workers": 1, "prefetch_factor": 2}


@pytest.mark.parametrize("made", [Chain.from_sequence, Chain.from_iterable])
@pytest.mark.parametrize("step", [
    lambda chain, function: chain.map(function),
    lambda chain, function: chain.filter_map(function),
    lambda chain, function: chain.cache().map(function),
    lambda chain, function: chain.parallel_map(function, **THREAD),
])  # fmt: skip
def test_a_function_may_change_its_sample(
    made: Callable[..., Chain], step: Callable[[Chain, Any], Chain]
) -> None:
    samples = source()
    chain = step(made(samples), changed)
    wanted = told(changed(sample) for sample in source())
    with chain.iter() as first:
        found = told([next(first)])
        state = first.state_dict()
        assert found + told(first) == wanted
    assert told(chain) == wanted
    assert found + told(chain.iter(state)) == wanted
    assert told(samples) == told(source())


@pytest.mark.parametrize("step", [Chain.filter, lambda d, fn: d.parallel_filter(fn, **THREAD)])
def test_what_a_filter_changes_is_not_seen(step: Callable[[Chain, Any], Chain]) -> None:
    assert told(step(Chain.from_sequence(source()), changed)) == told(source())


@pytest.mark.parametrize("make", [
    Chain.from_sequence, Chain.from_iterable, lambda s: Chain.from_iterable(s).cache(),
    lambda s: Chain.from_sequence(s).map(copy.deepcopy).cache(),
    lambda s: Chain.from_sequence(s).filter(bool).shuffle(2),
    lambda s: Chain.from_sequence(s).enumerate("turns").cache().enumerate("number"),
])  # fmt: skip
def test_a_loop_may_change_what_it_is_given(make: Callable[[Any], Chain]) -> None:
    samples = source()
    chain = make(samples)
    wanted = told(make(source()))
    for _ in range(3):
        found = []
        for sample in chain:
            found.append(repr(plain(sample)))
            sample["input_ids"].append(99)
            sample["array"] += 1
            sample["tensor"].add_(1)
            sample.pop("id")
        assert found == wanted
    assert told(samples) == told(source())


def test_samples_of_a_cache_come_again_in_each_epoch() -> None:
    chain = Chain.from_sequence(source()).map(copy.deepcopy).cache().repeat(3)
    found = []
    for sample in chain:
        found.append(repr(plain(sample)))
        sample["input_ids"].clear()
    assert found == told(source()) * 3


def test_batches_of_a_cache_may_be_changed() -> None:
    chain = Chain.from_sequence(source()).map(lambda s: {"id": s["id"]}).batch(2).cache()
    first = told(chain)
    for batch in chain:
        batch["id"] += 1
    assert told(chain) == first
