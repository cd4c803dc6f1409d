"""Training does what its plan says."""

import itertools

import pytest

from streaming_ext import TokenStream
from streaming_ext.base.errors import UsageError


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "batch_size": None,
            "global_batch": "0:24 900:12 3k:24",
            "sequence_length": "0:4 900:8 5k:16",
        },
        {"streams": ["0:1 2k:5", "0:2 3k:0"], "epoch_size": 600, "num_canonical_nodes": 3},
    ],
)
def test_training_goes_by_its_plan(load, raw, changes) -> None:
    if "streams" in changes:
        changes = changes | {
            "local": None,
            "streams": [
                TokenStream(local=raw.root, proportion=proportion)
                for proportion in changes["streams"]
            ],
        }
    loader = load(**changes, extras=["stream_ids"])
    plan = loader.plan(epochs=2)
    found = [
        (epoch, loader.tokens_seen, batch["tokens"].shape, batch["stream_ids"])
        for epoch in range(2)
        for batch in loader
    ]
    assert len(found) == plan.steps
    assert sum(shape.numel() for _, _, shape, _ in found) == plan.tokens
    for phase in plan.phases:
        own = found[phase.step : phase.step + phase.steps]
        assert {epoch for epoch, *_ in own} == {phase.epoch}
        assert own[-1][1] == phase.stop_token
        assert own[0][1] - own[0][2].numel() == phase.first_token
        assert {tuple(shape) for _, _, shape, _ in own} == {
            (phase.global_batch, phase.sequence_length)
        }
        streams = list(itertools.chain(*(ids.tolist() for *_, ids in own)))
        for stream, proportion in enumerate(phase.fractions):
            assert streams.count(stream) / len(streams) == pytest.approx(proportion)
    assert len(str(plan).splitlines()) == len(plan.phases) + 2
    idle = load(**changes)  # the second epoch of a loader that never ran
    idle.skip(len(idle) + 1)
    assert str(loader.plan()) == str(idle.plan())


def test_no_epochs_are_no_plan(load) -> None:
    with pytest.raises(UsageError, match="`epochs` of a plan must be at least 1, got 0"):
        load().plan(epochs=0)
