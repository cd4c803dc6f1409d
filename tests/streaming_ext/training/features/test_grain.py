"""A dataset read by the real Grain: by number in Grain's order, and in batches with a state."""

import json
import re
import textwrap
from itertools import islice
from typing import Any

import numpy as np
import pytest

from streaming_ext import StreamingTokenLoader
from tests.streaming_ext.loading import sequences
from tests.streaming_ext.training.trainers.recipes import ROOT

grain = pytest.importorskip("grain")


def numbers(batches: Any) -> list[list[int]]:
    return [np.asarray(batch["sequence_ids"]).tolist() for batch in batches]


def test_sequences_by_number(raw, open_raw) -> None:
    """Each comes once per epoch, in an order of Grain's that resumes; Grain's threads read."""
    from streaming_ext.training.features.grain import GrainSource

    source = GrainSource(open_raw())
    assert np.array_equal(source[3]["tokens"], raw.streams["train"][24:32])
    shuffled = grain.MapDataset.source(source).shuffle(seed=1).to_iter_dataset()
    found = list(islice(iterator := iter(shuffled), 100))
    state = iterator.get_state()
    rest = numbers(iterator)
    assert sorted([*numbers(found), *rest]) == list(range(585))
    again = iter(shuffled)
    again.set_state(state)
    assert numbers(again) == rest


def test_batches_resume_at_every_step_over_epochs(open_raw, load) -> None:
    from streaming_ext.training.features.grain import GrainBatches

    loader = load(batch_size=40)
    expected = [*sequences(loader), *sequences(loader)]
    batches = GrainBatches(lambda: StreamingTokenLoader(open_raw(batch_size=40)))
    prefetched = grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=2)
    iterator = iter(prefetched)
    states, found = [iterator.get_state()], []
    for batch in islice(iterator, len(expected)):
        found += numbers([batch])
        states.append(json.loads(json.dumps(iterator.get_state())))
    assert found == expected
    for step in (0, 1, 13, 14, 15, 20):
        again = iter(prefetched)
        again.set_state(states[step])
        assert numbers(islice(again, 5)) == expected[step : step + 5], step


def test_the_page(raw) -> None:
    """The Grain programs of docs/how-to/trainers.md run."""
    page = (ROOT / "docs/how-to/trainers.md").read_text()
    found = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    program = "".join(textwrap.dedent(cell) for cell in found if "features.grain" in cell)
    program = program.replace('"out"', repr(str(raw.root))).replace("1024", "8")
    program = program.replace("batch_size=8,", "batch_size=8, dp_rank=0, dp_world_size=1,")
    made: dict[str, Any] = {}
    exec(program, made)  # noqa: S102 - of this repository
    assert next(iter(made["batches"]))["tokens"].shape == (8, 8)
    assert next(made["iterator"])["tokens"].shape == (8, 8)
