"""Every step resumes after every sample, alone and in chains."""

import json
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

from streaming_ext.transforms import CheckpointableDataset, interleave_datasets
from tests.command_line import PATIENCE_SECONDS
from tests.streaming_ext.transforms.chains import NUMBERED, plain, require_resumes
from tests.streaming_ext.transforms.test_cuts import STEPS

Chain = CheckpointableDataset


def base() -> Chain:
    return Chain.from_sequence(NUMBERED)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_resumes_at_every_position(name) -> None:
    found = require_resumes(lambda: STEPS[name].chain(base()))
    assert found == [plain(sample) for sample in STEPS[name].model(NUMBERED)]


CHAINS: dict[str, Callable[[], Chain]] = {
    "epochs": lambda: Chain.from_sequence(NUMBERED, repeat=True, shuffle=True).take(100),
    "from_iterable, epochs": lambda: Chain.from_iterable(NUMBERED, repeat=True).take(100),
    "workers": lambda: base().parallel_map(
        dict, executor_type="thread", max_workers=2, prefetch_factor=3
    ),
    "pad": lambda: base().pad({"input_ids": 99}, 5),
    "several": lambda: (
        interleave_datasets([base().shuffle(4).concat_chunk(4), base().repeat(2).chunk(4)], [1, 2])
        .shuffle(3)
        .enumerate()
        .stride(2, 1)
        .cache()
        .take(17)
        .batch(3)
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_resumes_at_every_position(name) -> None:
    require_resumes(CHAINS[name])


def test_a_state_is_small_whatever_the_buffer_holds() -> None:
    rows = Chain.from_sequence([{"input_ids": [1] * 64}] * 300).concat_chunk(64).shuffle(100)
    with rows.batch(2).iter() as batches:
        for _ in range(60):
            next(batches)
        assert len(json.dumps(batches.state_dict())) < 1000


def test_unordered_workers_run_far_ahead_of_a_slow_sample() -> None:
    """It waits for samples far behind it, but still comes before them."""
    released = Event()

    def held(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] in {0, 11}:
            assert released.wait(PATIENCE_SECONDS)
        elif sample["id"] == 14:
            released.set()
        return sample

    def make() -> Chain:
        return (
            base()
            .parallel_map(
                held, ordered=False, executor_type="thread", max_workers=3, prefetch_factor=2
            )
            .shuffle(5)
        )

    require_resumes(make)
