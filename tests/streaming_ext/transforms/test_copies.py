"""A change of a sample affects no other pass, and not the source."""

import copy
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from streaming_ext.transforms import CheckpointableDataset
from tests.streaming_ext.transforms.chains import plain

Chain = CheckpointableDataset


def source() -> list[dict[str, Any]]:
    return [
        {
            "id": n,
            "input_ids": [n],
            "turns": [{"said": ["a"]}],
            "ordered": OrderedDict(x=[1]),
            "pair": ([1], 2),
            "array": np.array([n]),
            "tensor": torch.tensor([n]),
        }
        for n in range(5)
    ]


def changed(sample: dict[str, Any]) -> dict[str, Any]:
    """Change every value of a sample, and return it."""
    sample["input_ids"].append(0)
    sample["turns"][0]["said"].append("b")
    sample["ordered"]["x"].append(2)
    sample["pair"][0].append(3)
    sample["array"] += 10
    sample["tensor"].add_(10)
    sample["more"] = sample.pop("id")
    return sample


def texts_of(samples: Any) -> list[str]:
    """Return samples as texts, which nothing changes later."""
    return [repr(plain(sample)) for sample in samples]


THREAD = {"executor_type": "thread", "max_workers": 1, "prefetch_factor": 2}


@pytest.mark.parametrize("made", [Chain.from_sequence, Chain.from_iterable])
@pytest.mark.parametrize(
    "step",
    [
        lambda chain, function: chain.map(function),
        lambda chain, function: chain.filter_map(function),
        lambda chain, function: chain.cache().map(function),
        lambda chain, function: chain.parallel_map(function, **THREAD),
    ],
)
def test_a_function_may_change_its_sample(made, step) -> None:
    samples = source()
    chain = step(made(samples), changed)
    wanted = texts_of(changed(sample) for sample in source())
    with chain.iter() as first:
        found = texts_of([next(first)])
        state = first.state_dict()
        assert found + texts_of(first) == wanted
    assert texts_of(chain) == wanted
    assert found + texts_of(chain.iter(state)) == wanted
    assert texts_of(samples) == texts_of(source())


@pytest.mark.parametrize("step", [Chain.filter, lambda d, fn: d.parallel_filter(fn, **THREAD)])
def test_changes_by_a_filter_are_not_seen(step) -> None:
    assert texts_of(step(Chain.from_sequence(source()), changed)) == texts_of(source())


@pytest.mark.parametrize(
    "make",
    [
        Chain.from_sequence,
        Chain.from_iterable,
        lambda s: Chain.from_iterable(s).cache(),
        lambda s: Chain.from_sequence(s).map(copy.deepcopy).cache(),
        lambda s: Chain.from_sequence(s).filter(bool).shuffle(2),
        lambda s: Chain.from_sequence(s).enumerate("turns").cache().enumerate("number").repeat(2),
    ],
)
def test_a_loop_may_change_its_samples(make) -> None:
    samples = source()
    chain = make(samples)
    wanted = texts_of(make(source()))
    for _ in range(3):
        found = []
        for sample in chain:
            found.append(repr(plain(sample)))
            sample["input_ids"].append(99)
            sample["array"] += 1
            sample["tensor"].add_(1)
            sample.pop("id")
        assert found == wanted
    assert texts_of(samples) == texts_of(source())
