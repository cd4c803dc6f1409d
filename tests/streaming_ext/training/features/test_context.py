"""Rows shared by context-parallel ranks, and steps of one stream each."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from streaming_ext import StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from tests.streaming_ext.build import build_some
from tests.streaming_ext.loading import pairs_of

PER_TOKEN = ("tokens", "targets", "position_ids", "document_ids", "domain_ids")


@pytest.mark.parametrize(
    ("size", "workers", "packing", "layout"),
    [
        (1, 0, None, "balanced"),
        (2, 1, None, "balanced"),
        (4, 0, None, "balanced"),
        (2, 0, "best_fit", "balanced"),
        (4, 1, "best_fit", "balanced"),
        (4, 0, None, "contiguous"),
    ],
)
def test_the_parts_of_all_ranks_are_the_rows(load, size, workers, packing, layout) -> None:
    chunks = 2 * size if layout == "balanced" else size
    settings = {
        "extras": [*PER_TOKEN[1:], "cu_seqlens", "sequence_ids"],
        "domain_by": "folder",
        "packing": packing,
        "sequence_length": 3 * chunks,
    }
    rows = list(load(**settings))
    parts = [
        list(load(**settings, cp_rank=rank, cp_size=size, cp_layout=layout, num_workers=workers))
        for rank in range(size)
    ]
    assert len(rows) > 40
    for step, batch in enumerate(rows):
        for name in PER_TOKEN:
            own = [part[step][name].split(3, dim=1) for part in parts]
            ordered = [each[0] for each in own] + [each[1] for each in own[::-1] if each[1:]]
            assert len(ordered) == chunks
            assert torch.equal(torch.cat(ordered, dim=1), batch[name])
        for part in parts:
            assert torch.equal(part[step]["cu_seqlens"], batch["cu_seqlens"])
            assert torch.equal(part[step]["sequence_ids"], batch["sequence_ids"])
            assert part[step]["tokens"].is_contiguous()


def test_the_state_does_not_know_of_it(load) -> None:
    here, other = load(cp_rank=1, cp_size=2), load()
    next(iter(here))
    other.load_state_dict(here.state_dict())
    assert other.state_dict() == here.state_dict()


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"cp_rank": 0}, "or neither"),
        ({"cp_rank": 2, "cp_size": 2}, "got cp_rank=2 and cp_size=2"),
        ({"cp_rank": 0, "cp_size": 0}, "`cp_size` must be at least 1, got 0"),
        (
            {"cp_rank": 0, "cp_size": 2, "cp_layout": "ring"},
            "`cp_layout` must be one of 'balanced', ",
        ),
        ({"cp_rank": 0, "cp_size": 3, "cp_layout": "contiguous"}, "a multiple of 3"),
        ({"cp_rank": 0, "cp_size": 3}, "`sequence_length` is 8: .* a multiple of 6"),
        ({"cp_rank": 0, "cp_size": 2, "dp_rank": None, "dp_world_size": None}, "replication=2"),
    ],
)
def test_what_is_not_allowed(open_raw, given, reported) -> None:
    with pytest.raises(UsageError, match=reported):
        open_raw(**given)


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> list[TokenStream]:
    folder: Path = tmp_path_factory.mktemp("streams")
    return [
        TokenStream(local=build_some(folder / str(count), count).root) for count in (300, 120, 80)
    ]


@pytest.fixture
def mixed(load: Callable[..., StreamingTokenLoader], streams: list[TokenStream]) -> Any:
    return partial(
        load,
        local=None,
        streams=streams,
        batch_size=6,
        num_canonical_nodes=4,
        extras=["stream_ids", "sequence_ids"],
        batching_method="per_stream",
    )


def test_each_step_is_of_one_stream_and_each_sequence_comes_once(mixed) -> None:
    loader = mixed()
    for epoch in range(2):
        steps = [pairs_of(batch) for batch in loader]
        assert all(len({stream for stream, _ in step}) == 1 for step in steps)
        order = [step[0][0] for step in steps]
        assert sorted(set(order)) == [0, 1, 2]
        assert order != sorted(order)
        seen = list(itertools.chain(*steps))
        # The second epoch begins a bit before the end of the first pass.
        assert epoch or len(seen) == len(set(seen)) == loader.dataset.plan.epoch_size
        assert len(seen) == 6 * len(loader) > 900


def test_each_rank_has_a_stream(mixed) -> None:
    def loader(rank: int, ranks: int) -> StreamingTokenLoader:
        return mixed(
            batch_size=12 // ranks,
            dp_rank=rank,
            dp_world_size=ranks,
            batching_method="device_per_stream",
        )

    of_ranks = [[pairs_of(batch) for batch in loader(rank, 4)] for rank in range(4)]
    for batches in of_ranks:
        assert all(len({stream for stream, _ in batch}) == 1 for batch in batches)
    steps = [list(itertools.chain(*batches)) for batches in zip(*of_ranks, strict=True)]
    seen = list(itertools.chain(*steps))
    assert len(seen) == len(set(seen)) == loader(0, 4).dataset.plan.epoch_size // 12 * 12
    assert len({tuple(sorted({stream for stream, _ in step})) for step in steps}) > 3
    with pytest.raises(ConfigMismatchError, match="the state has 'device_per_stream:3'"):
        loader(0, 2).load_state_dict(loader(0, 4).state_dict())


@pytest.mark.parametrize(
    ("method", "sizes", "reported"),
    [
        ("device_per_stream", {"batch_size": 1000}, "less than the 1000 that batching_method"),
        (
            "per_stream",
            {"batch_size": 1000},
            "less than the 1000 that batching_method='per_stream'",
        ),
        ("device_per_stream:4", {}, "must be 'random' or"),
        (
            "device_per_stream",
            {"batch_size": None, "global_batch": "0:6 999:12"},
            "steps of one size",
        ),
    ],
)
def test_batches_of_a_rank_that_do_not_fit(mixed, method, sizes, reported) -> None:
    with pytest.raises(UsageError, match=reported):
        mixed(batching_method=method, **sizes)


@pytest.mark.parametrize(
    ("proportions", "wanted", "most"),
    [
        ((6, 5, 1), (6, 5, 1), 0),
        ((0.7, 0.3), (8.4, 3.6), 2),
    ],
)
def test_each_step_holds_the_proportions(mixed, streams, proportions, wanted, most) -> None:
    shares = [
        TokenStream(local=stream.local, proportion=proportion)
        for stream, proportion in zip(streams, proportions, strict=False)
    ]
    loader = mixed(streams=shares, batching_method="stratified", epoch_size=1200, batch_size=12)
    assert loader.state_dict()["order"]["batching_method"] == "stratified"
    assert len(loader) == 100
    for batch in loader:
        counts = batch["stream_ids"].bincount().tolist()
        assert all(abs(a - b) <= most for a, b in zip(counts, wanted, strict=True))
