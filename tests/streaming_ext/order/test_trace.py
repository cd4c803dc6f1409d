"""The documents of a step, found again in the tokens that training received."""

import pytest

from streaming_ext import StreamingTokenLoader
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.training.trace import trace_step
from tests.streaming_ext.build import EOT, numbered_parts, some_documents


@pytest.fixture(scope="session")
def sources() -> dict[tuple[str, int], list[int]]:
    """Each document of the raw dataset by source file and row."""
    return {
        (f"mem://source-{part}.parquet", row): [*ids, EOT]
        for part, rows in enumerate(numbered_parts(some_documents(300)))
        for row, (_, ids) in enumerate(rows)
    }


@pytest.mark.parametrize(
    ("length", "split", "packing"),
    [
        (8, "train", None),
        (60, "holdout", None),
        (1000, "train", None),
        (7, "holdout", "best_fit"),
        (64, "train", "best_fit"),
    ],
)
def test_each_token_is_explained(open_raw, sources, length, split, packing) -> None:
    settings = {
        "sequence_length": length,
        "split": split,
        "batch_size": 1,
        "drop_last": True,
        "packing": packing,
    }
    loader = StreamingTokenLoader(open_raw(**settings))
    explained = 0
    for step, batch in enumerate(loader):
        (trace,) = loader.trace(step)
        assert [trace.sequence] == batch["sequence_ids"].tolist()
        reported = [EOT] * length
        for span in trace.spans:
            segment = sources[span.source, span.row][span.first : span.first + span.tokens]
            assert len(segment) == span.tokens > 0
            reported[span.position : span.position + span.tokens] = segment
            explained += span.tokens
        assert batch["tokens"].tolist() == [reported]
    assert explained > 400


def test_the_sequences_of_all_ranks(open_raw) -> None:
    batches = [
        [b["sequence_ids"].tolist() for b in StreamingTokenLoader(dataset)]
        for dataset in (open_raw(dp_rank=rank, dp_world_size=3) for rank in range(3))
    ]
    traces = trace_step(open_raw(dp_rank=1, dp_world_size=3), 5)
    for rank in range(3):
        assert [t.sequence for t in traces if t.rank == rank] == batches[rank][5]


def test_later_epochs(open_raw) -> None:
    loader = StreamingTokenLoader(open_raw())
    for _ in range(2):
        seen = [batch["sequence_ids"].tolist() for batch in loader]
    assert [trace.sequence for trace in loader.trace(3)] == seen[3]
    assert [trace.sequence for trace in trace_step(open_raw(), 3, epoch=1)] == seen[3]


def test_what_cannot_be_traced(raw, copy, open_raw) -> None:
    with pytest.raises(UsageError, match=r"in \[0, 146\), got 146"):
        trace_step(open_raw(), 146)
    root = copy(raw)
    for path in (root / "documents").iterdir():
        path.write_bytes(b"x")
    with pytest.raises(CorruptDatasetError, match="documents/0000"):
        trace_step(open_raw(local=root), 0)


def test_an_epoch_below_the_first_is_refused(open_raw) -> None:
    with pytest.raises(UsageError, match="`epoch` must be at least 0, got -1"):
        trace_step(open_raw(), 0, epoch=-1)
