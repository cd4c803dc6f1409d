"""Every step resumes behind every sample, alone and in chains."""

import json
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

from streaming_ext.transforms import (
    CheckpointableDataset,
    concat_datasets,
    interleave_datasets,
)
from tests.command_line import PATIENCE_SECONDS
from tests.streaming_ext.transforms.chains import NUMBERED, require_resumes

Chain = CheckpointableDataset


def base() -> Chain:
    return Chain.from_sequence(NUMBERED)


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "double": 2 * sample["id"]}


def third(sample: dict[str, Any]) -> bool:
    return bool(sample["id"] % 3 == 0)


def third_doubled(sample: dict[str, Any]) -> dict[str, Any] | None:
    return doubled(sample) if third(sample) else None


def ids(dataset: Chain) -> Chain:
    return dataset.map(lambda sample: {"id": sample["id"]})


STEPS: dict[str, Callable[[], Chain]] = {
    "from_sequence": base,
    "from_sequence, epochs": lambda: Chain.from_sequence(NUMBERED, repeat=True, shuffle=True).take(
        100
    ),
    "from_iterable, epochs": lambda: Chain.from_iterable(NUMBERED, repeat=True).take(100),
    "map": lambda: base().map(doubled),
    "filter": lambda: base().filter(third),
    "filter_map": lambda: base().filter_map(third_doubled),
    "parallel_map": lambda: base().parallel_map(
        doubled, executor_type="thread", max_workers=2, prefetch_factor=3
    ),
    "parallel_filter_map": lambda: base().parallel_filter_map(
        third_doubled, executor_type="thread", max_workers=1, prefetch_factor=1
    ),
    "enumerate": lambda: base().enumerate(),
    "take": lambda: base().take(17),
    "stride": lambda: base().stride(3, 1),
    "repeat": lambda: base().repeat(2),
    "shuffle": lambda: base().shuffle(7),
    "batch": lambda: ids(base()).batch(4),
    "batch, own": lambda: base().batch(4, collate_fn=lambda samples: {"all": list(samples)}),
    "chunk": lambda: base().chunk(2),
    "concat_chunk": lambda: base().concat_chunk(7),
    "pack_chunk": lambda: base().pack_chunk(6, ["input_ids"]),
    "pack_chunk, cut": lambda: base().pack_chunk(3, ["input_ids"]),
    "pack_chunk, left out": lambda: base().pack_chunk(
        3, ["input_ids"], discard_long_samples=True
    ),
    "pad": lambda: base().pad({"input_ids": 99}, 5),
    "add_bos_eos": lambda: base().add_bos_eos(7, 8),
    "interleave": lambda: interleave_datasets([base(), base().map(doubled)], [3, 1]),
    "concat": lambda: concat_datasets([base().take(3), base().take(0), base()]),
    "cache": lambda: base().shuffle(5).cache(),
    "rows": lambda: base().repeat(3).concat_chunk(5).shuffle(9).batch(2),
    "all at once": lambda: interleave_datasets(
        [base().shuffle(4).concat_chunk(4), base().repeat(2).chunk(4)], [1, 2]
    ).shuffle(3).enumerate().stride(2, 1).cache().batch(3),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_every_position(name: str) -> None:
    require_resumes(STEPS[name])


def test_a_state_is_small_whatever_the_buffer_holds() -> None:
    rows = Chain.from_sequence([{"input_ids": [1] * 64}] * 300).concat_chunk(64).shuffle(100)
    with rows.batch(2).iter() as batches:
        for _ in range(60):
            next(batches)
        assert len(json.dumps(batches.state_dict())) < 1000


def test_unordered_workers_run_far_ahead_of_a_slow_sample() -> None:
    """It waits for samples far behind it, and comes before them all the same."""
    released = Event()

    def held(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] in {0, 11}:
            assert released.wait(PATIENCE_SECONDS)
        elif sample["id"] == 14:
            released.set()
        return sample

    def make() -> Chain:
        workers: dict[str, Any] = {
            "executor_type": "thread",
            "max_workers": 3,
            "prefetch_factor": 2,
        }
        return base().parallel_map(held, ordered=False, **workers).shuffle(5)

    require_resumes(make)
