"""Questions asked backwards: where in an epoch a document comes, and what a mixture came to."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import UsageError
from streaming_ext.training.trace import trace_document, trace_step
from tests.streaming_ext.build import build, numbered_parts, some_documents

Open = Callable[..., StreamingTokenDataset]


@pytest.mark.parametrize(("changes", "epoch"), [
    ({}, 0),
    ({"sequence_length": 5, "epoch_size": 300}, 4),
    ({"sequence_length": 40, "packing": "best_fit"}, 1),
    ({"sequence_length": 7, "packing": "best_fit", "shuffle": False}, 0),
])  # fmt: skip
def test_each_document_of_an_epoch(open_raw, changes, epoch) -> None:
    dataset = open_raw(dp_world_size=2, dp_rank=0, batch_size=2, **changes)
    found: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    for step in range(dataset.plan.steps_left(dataset.plan.start(0))):
        for reported in trace_step(dataset, step, epoch=epoch):
            for span in reported.spans:
                where = (
                    step,
                    reported.rank,
                    reported.sequence,
                    span.first,
                    span.tokens,
                    span.position,
                )
                found.setdefault((span.source, span.row), set()).add(where)
    assert len(found) > 100
    for (source, row), expected in list(found.items())[::3]:
        visits = trace_document(dataset, source, row, epoch=epoch)
        reported = [(visit.step, visit.rank, visit.sequence, visit.span.first, visit.span.tokens,
                 visit.span.position) for visit in visits]  # fmt: skip
        assert len(reported) == len(set(reported))
        assert set(reported) == expected


def test_documents_that_are_not_there(open_raw) -> None:
    loader = StreamingTokenLoader(open_raw())
    assert loader.trace_document("source-1.parquet", 4)
    with pytest.raises(UsageError, match="No document of split 'train' comes from row 0 of"):
        loader.trace_document("mem://source-0.parquet", 0)  # in the holdout
    with pytest.raises(UsageError, match="comes from row 3 of source-9"):
        loader.trace_document("source-9.parquet", 3)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> list[TokenStream]:
    folder = tmp_path_factory.mktemp("mixture")
    roots = [
        build(folder / str(seed), numbered_parts(some_documents(count, seed=seed))).root
        for seed, count in enumerate((300, 60, 90))
    ]
    return [
        TokenStream(local=root, proportion=proportion, domain=domain)
        for root, proportion, domain in zip(
            roots, (6, 3, 1), ("web", "code", "web"), strict=True
        )
    ]  # fmt: skip


def open_mixture(streams: list[TokenStream], **changes: Any) -> StreamingTokenDataset:
    settings = {"streams": streams, "batch_size": 5, "shuffle": True, "num_canonical_nodes": 3,
                "epoch_size": 400, "dp_rank": 0, "dp_world_size": 1,
                "extras": ["stream_ids", "domain_ids", "sequence_ids"]}  # fmt: skip
    return StreamingTokenDataset(**(settings | changes))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_mixture_came_to(mixture, workers) -> None:
    loader = StreamingTokenLoader(open_mixture(mixture), num_workers=workers)
    seen = np.zeros(3, np.int64)
    for left_out in (0, 4):  # by the first epoch: it has 399 in steps of 5
        for batch in loader:
            streams = batch["stream_ids"].numpy()
            assert (batch["domain_ids"].numpy() == np.array([0, 1, 0])[streams]).all()
            seen += np.bincount(streams, minlength=3)
            reported = loader.achieved()
            more = np.array([each.sequences for each in reported]) - seen
            assert (more >= 0).all()
            assert more.sum() == left_out
            assert loader.tokens_seen == (seen.sum() + left_out) * 8
    assert [each.domain for each in reported] == ["web", "code", "web"]
    assert sum(each.fraction for each in reported) == pytest.approx(1)
    assert abs(reported[0].fraction - 0.6) < 0.02
    assert reported[1].passes == reported[1].sequences / loader.dataset.plan.sizes[1] > 1
