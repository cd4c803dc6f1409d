"""Batches, lengths and mixtures that change with the tokens of training, through real loaders."""

from typing import Any

import pytest
from torch.utils.data import DataLoader

from streaming_ext import StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from tests.streaming_ext.build import build_some
from tests.streaming_ext.conftest import tokens_of
from tests.streaming_ext.loading import saved, sequences

# 585 samples of 8 tokens; steps of 96, 96, 192 and 192 tokens, then of 384
CHANGES: dict[str, Any] = {
    "batch_size": None,
    "sequence_length": "0:4 192:8 900:16",
    "global_batch": "0:24 900:12 2k:24",
}


def test_skipped_steps_have_their_own_sizes(load) -> None:
    expected = tokens_of(load(**CHANGES))
    loader = load(**CHANGES)
    loader.skip(4)
    assert tokens_of(loader) == expected[4:]
    running = load(**CHANGES)
    found = []
    for step, batch in enumerate(running):
        found.append(batch["tokens"].tolist())
        if step == 0:
            running.skip(3)
    assert found == [expected[0], *expected[4:]]


def test_steps_that_no_epoch_holds_are_refused(open_raw) -> None:
    """Otherwise every epoch after that token is empty, and training loops forever."""
    for settings, rows in (
        ({"global_batch": "0:4 2K:1000"}, 1000),
        ({"global_batch": "0:588", "sequence_length": "0:4 1K:8"}, 588),
        ({"global_batch": "0:4 2K:16", "epoch_size": 15}, 16),
    ):
        why = f"is less than one global batch of {rows}, which a step takes from token"
        with pytest.raises(UsageError, match=why):
            open_raw(batch_size=None, **settings)
    open_raw(batch_size=None, global_batch="0:4 2K:585")


def test_the_next_batch_behind_the_last_step_is_of_the_next_epoch(load) -> None:
    loader = load(batch_size=None, global_batch="0:4 3K:8", epoch_size=90)
    found = [[loader.batch_size for _ in loader] for _ in range(6)]
    assert loader.batch_size == 8
    assert {size for sizes in found for size in sizes} == {4, 8}


def test_a_plain_loader_is_refused_with_advice(open_raw, load) -> None:
    dataset = open_raw(**CHANGES)
    with pytest.raises(UsageError, match=r"Use StreamingTokenLoader\(dataset\)"):
        next(iter(DataLoader(dataset, batch_size=4)))
    with pytest.raises(UsageError, match=r"Use StreamingTokenLoader\(dataset\)"):
        len(dataset)
    constant = open_raw(batch_size=None, global_batch=8)
    assert constant.batch_size == 8
    assert tokens_of(DataLoader(constant, batch_size=8)) == tokens_of(load(batch_size=8))


def test_a_state_is_of_its_schedule(load) -> None:
    loader = load(**CHANGES)
    sequences(loader, 3)
    state = saved(loader)
    assert state["order"]["global_batch"] == "0:24 900:12 2000:24"
    assert state["order"]["sequence_length"] == "0:4 192:8 900:16"
    changed = CHANGES | {"global_batch": "0:24 900:12 1.2k:48"}
    longer = load(**changed)
    with pytest.raises(ConfigMismatchError, match="global_batch: the state has '0:24 900:12"):
        longer.load_state_dict(state)
    longer.load_state_dict(state, allow_changes=["global_batch"])
    assert "past" not in saved(longer)  # the change was still to come
    assert tokens_of(longer) == tokens_of(load(**changed))[3:]


def test_a_small_stream_of_a_mixture_does_not_repeat_for_ever(tmp_path, raw, load) -> None:
    code = build_some(tmp_path / "code", 60, seed=1)

    def mixed(*, max_repeats: float | None = None, **settings: Any) -> StreamingTokenLoader:
        streams = [
            TokenStream(local=raw.root, proportion="0:0.9 2k:0.1"),
            TokenStream(local=code.root, proportion="0:1 2k:9", max_repeats=max_repeats),
        ]
        return load(
            local=None,
            streams=streams,
            batch_size=None,
            global_batch="0:4 2k:8",
            num_canonical_nodes=2,
            **settings,
        )

    loader = mixed()
    sequences(loader, 10)
    state = saved(loader)
    with pytest.raises(UsageError, match="stream 1 has reached `max_repeats`"):
        mixed(max_repeats=2)
    limited = mixed(max_repeats=20)
    with pytest.raises(ConfigMismatchError, match=r"max_repeats: .* None, this loader \[None, '20"):
        limited.load_state_dict(state)
    changes = ["max_repeats", "at_max_repeats", "streams"]
    limited.load_state_dict(state, allow_changes=changes)
    assert limited.epoch == 1  # training continues in a new epoch
    again = mixed(max_repeats=20)
    again.load_state_dict(saved(limited))
    assert again.tokens_seen == limited.tokens_seen == 10 * 4 * 8
