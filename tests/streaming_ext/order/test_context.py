"""Rows shared by context-parallel ranks, and steps of one stream each."""

from pathlib import Path
from typing import Any

import pytest
import torch

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from tests.streaming_ext.build import build, numbered_parts, some_documents

PER_TOKEN = ("tokens", "targets", "position_ids", "document_ids")


@pytest.mark.parametrize(("size", "workers", "packing", "layout"), [
    (1, 0, None, "balanced"), (2, 1, None, "balanced"), (4, 0, None, "balanced"),
    (2, 0, "best_fit", "balanced"), (4, 1, "best_fit", "balanced"), (4, 0, None, "contiguous"),
])  # fmt: skip
def test_the_parts_of_all_ranks_are_the_rows(open_raw, size, workers, packing, layout) -> None:
    chunks = 2 * size if layout == "balanced" else size
    settings = {"extras": [*PER_TOKEN[1:], "cu_seqlens", "sequence_ids"], "packing": packing,
                "sequence_length": 3 * chunks}  # fmt: skip
    rows = list(StreamingTokenLoader(open_raw(**settings)))
    parts = [
        list(StreamingTokenLoader(
            open_raw(**settings, cp_rank=rank, cp_size=size, cp_layout=layout), num_workers=workers,
        ))
        for rank in range(size)
    ]  # fmt: skip
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


def test_the_state_does_not_know_of_it(open_raw) -> None:
    here = StreamingTokenLoader(open_raw(cp_rank=1, cp_size=2))
    next(iter(here))
    other = StreamingTokenLoader(open_raw())
    other.load_state_dict(here.state_dict())
    assert other.state_dict() == here.state_dict()


@pytest.mark.parametrize(("given", "reported"), [
    ({"cp_rank": 0}, "or neither"),
    ({"cp_rank": 2, "cp_size": 2}, "got cp_rank=2 and cp_size=2"),
    ({"cp_rank": 0, "cp_size": 0}, "got cp_rank=0 and cp_size=0"),
    ({"cp_rank": 0, "cp_size": 2, "cp_layout": "ring"}, "`cp_layout` must be one of 'balanced', "),
    ({"cp_rank": 0, "cp_size": 3, "cp_layout": "contiguous"}, "a multiple of 3"),
    ({"cp_rank": 0, "cp_size": 3}, "`sequence_length` is 8: .* a multiple of 6"),
    ({"cp_rank": 0, "cp_size": 2, "dp_rank": None, "dp_world_size": None}, "replication=2"),
])  # fmt: skip
def test_what_is_not_allowed(open_raw, given, reported) -> None:
    with pytest.raises(UsageError, match=reported):
        open_raw(**given)


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> list[TokenStream]:
    folder: Path = tmp_path_factory.mktemp("streams")
    return [
        TokenStream(local=build(folder / str(count), numbered_parts(some_documents(count))).root)
        for count in (300, 120, 80)
    ]


def opened(streams: list[TokenStream], **changes: Any) -> StreamingTokenDataset:
    settings = {"streams": streams, "batch_size": 6, "shuffle": True, "num_canonical_nodes": 4,
                "extras": ["stream_ids", "sequence_ids"], "batching_method": "per_stream",
                "dp_rank": 0, "dp_world_size": 1}  # fmt: skip
    return StreamingTokenDataset(**(settings | changes))


def test_each_step_is_of_one_stream_and_each_sequence_comes_once(streams) -> None:
    loader = StreamingTokenLoader(opened(streams))
    for epoch in range(2):
        seen: list[tuple[int, int]] = []
        order = []
        for batch in loader:
            (stream,) = set(batch["stream_ids"].tolist())
            order.append(stream)
            seen += [(stream, sequence) for sequence in batch["sequence_ids"].tolist()]
        # The second epoch begins a bit before the end of the first pass.
        assert epoch or len(seen) == len(set(seen)) == loader.dataset.plan.epoch_size
        assert len(seen) == 6 * len(loader) > 900
        assert order != sorted(order)
        assert set(order) == {0, 1, 2}


def test_each_rank_has_a_stream(streams) -> None:
    def loader(rank: int, ranks: int) -> StreamingTokenLoader:
        changes = {"batch_size": 12 // ranks, "dp_rank": rank, "dp_world_size": ranks,
                   "batching_method": "device_per_stream"}  # fmt: skip
        return StreamingTokenLoader(opened(streams, **changes))

    of_ranks, states = [], []
    for rank in range(4):
        one = loader(rank, 4)
        batches = []
        for batch in one:
            batches.append(batch)
            if rank == 0:
                states.append(one.state_dict())
        of_ranks.append(batches)
    assert states[0]["order"]["batching_method"] == "device_per_stream:3"
    steps = []
    for batches in zip(*of_ranks, strict=True):
        for batch in batches:
            assert len(set(batch["stream_ids"].tolist())) == 1
        steps.append(sorted(pair for batch in batches for pair in pairs_of(batch)))
    seen = [pair for step in steps for pair in step]
    assert len(seen) == len(set(seen)) == one.dataset.plan.epoch_size // 12 * 12
    assert len({tuple(sorted({stream for stream, _ in step})) for step in steps}) > 3
    with pytest.raises(ConfigMismatchError, match="the state has 'device_per_stream:3'"):
        loader(0, 2).load_state_dict(states[0])


def pairs_of(batch: dict[str, Any]) -> list[tuple[int, int]]:
    """Stream and sequence of each row."""
    return list(zip(batch["stream_ids"].tolist(), batch["sequence_ids"].tolist(), strict=True))


@pytest.mark.parametrize(("method", "sizes", "reported"), [
    ("device_per_stream", {"batch_size": 1000}, "less than the 1000 that batching_method"),
    ("per_stream", {"batch_size": 1000}, "less than the 1000 that batching_method='per_stream'"),
    ("device_per_stream:4", {}, "must be 'random' or"),
    ("device_per_stream", {"batch_size": None, "global_batch": "0:6 999:12"}, "steps of one size"),
])  # fmt: skip
def test_batches_of_a_rank_that_do_not_fit(streams, method, sizes, reported) -> None:
    with pytest.raises(UsageError, match=reported):
        opened(streams, batching_method=method, **sizes)


def test_each_step_holds_the_proportions(streams) -> None:
    web, code, math = (stream.local for stream in streams)
    settings: dict[str, Any] = {
        "batching_method": "stratified", "epoch_size": 1200, "batch_size": 12,
    }  # fmt: skip
    even = [TokenStream(local=web, proportion=6), TokenStream(local=code, proportion=5),
            TokenStream(local=math, proportion=1)]  # fmt: skip
    loader = StreamingTokenLoader(opened(even, **settings))
    assert loader.state_dict()["order"]["batching_method"] == "stratified"
    steps = [batch["stream_ids"].tolist() for batch in loader]
    assert len(steps) == 100
    for ids in steps:
        assert [ids.count(stream) for stream in range(3)] == [6, 5, 1]
    uneven = [TokenStream(local=web, proportion=0.7), TokenStream(local=code, proportion=0.3)]
    for batch in StreamingTokenLoader(opened(uneven, **settings)):
        assert abs(batch["stream_ids"].tolist().count(0) - 8.4) < 2
    changing = [TokenStream(local=web, proportion="0:1 2k:3"),
                TokenStream(local=code, proportion=1)]  # fmt: skip
    with pytest.raises(UsageError, match="'stratified' holds one mixture in every step"):
        opened(changing, **settings)
