"""The documents of a step, compared with the tokens of training, and the steps of a document."""

from collections import defaultdict

import pytest

from streaming_ext import TokenStream
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.training.features.trace import trace_document, trace_step
from tests.streaming_ext.build import EOT
from tests.streaming_ext.loading import sequences


@pytest.mark.parametrize(
    ("length", "split", "packing", "where"),
    [
        (1, "train", None, None),
        (60, "holdout", None, None),
        (1000, "train", None, None),
        (7, "holdout", "best_fit", None),
        (64, "train", "best_fit", None),
        (24, "train", None, "tokens > 20"),
    ],
)
def test_each_token_is_explained(load, raw, length, split, packing, where) -> None:
    loader = load(
        local=None,
        streams=[TokenStream(local=raw.root, where=where)],
        sequence_length=length,
        split=split,
        batch_size=1,
        drop_last=True,
        packing=packing,
    )
    sources, explained = raw.documents[split], 0
    for step, batch in enumerate(loader):
        (trace,) = loader.trace(step)
        assert [trace.sequence] == batch["sequence_ids"].tolist()
        reported = [EOT] * length
        for span in trace.spans:
            segment = sources[span.source, span.row][span.first : span.first + span.tokens]
            assert len(segment) == span.tokens > 0
            assert where is None or len(sources[span.source, span.row]) > 21
            reported[span.position : span.position + span.tokens] = segment
            explained += span.tokens
        assert batch["tokens"].tolist() == [reported]
    assert explained > 400


def test_the_sequences_of_all_ranks_and_of_later_epochs(load) -> None:
    loaders = [load(dp_rank=rank, dp_world_size=3) for rank in range(3)]
    for epoch in range(2):
        batches = [sequences(loader) for loader in loaders]
        for traces in (
            loaders[1].trace(5),
            trace_step(load(dp_world_size=3).dataset, 5, epoch=epoch),
        ):
            for rank in range(3):
                assert [t.sequence for t in traces if t.rank == rank] == batches[rank][5]


@pytest.mark.parametrize(
    ("changes", "epoch"),
    [
        ({}, 0),
        ({"sequence_length": 5, "epoch_size": 300}, 4),
        ({"sequence_length": 40, "packing": "best_fit"}, 1),
        ({"sequence_length": 7, "packing": "best_fit", "shuffle": False}, 0),
        ({"where": "tokens > 9"}, 0),
    ],
)
def test_each_document_of_an_epoch_backwards(raw, open_raw, changes, epoch) -> None:
    streams = [TokenStream(local=raw.root, where=changes.pop("where", None))]
    dataset = open_raw(local=None, streams=streams, dp_world_size=2, batch_size=2, **changes)
    found = defaultdict(list)
    for step in range(dataset.plan.steps_left(dataset.plan.start(0))):
        for trace in trace_step(dataset, step, epoch=epoch):
            for span in trace.spans:
                found[span.source, span.row].append((step, trace.rank, trace.sequence, span))
    assert len(found) > 100
    for document in list(found)[::3]:
        visits = trace_document(dataset, *document, epoch=epoch)
        reported = [(visit.step, visit.rank, visit.sequence, visit.span) for visit in visits]
        assert sorted(map(repr, reported)) == sorted(map(repr, found[document]))
    left_out = raw.documents["train"].keys() - found.keys()
    assert not any(trace_document(dataset, *document, epoch=epoch) for document in left_out)


@pytest.mark.parametrize(
    ("source", "row", "said"),
    [
        (
            "mem://source-0.parquet",
            0,
            "No document of split 'train' comes from row 0 of",
        ),  # a holdout
        ("source-9.parquet", 3, "comes from row 3 of source-9"),
    ],
)
def test_documents_that_do_not_exist(load, source, row, said) -> None:
    loader = load()
    assert loader.trace_document("source-1.parquet", 4)
    with pytest.raises(UsageError, match=said):
        loader.trace_document(source, row)


def test_what_cannot_be_traced(raw, copy, open_raw) -> None:
    with pytest.raises(UsageError, match=r"in \[0, 146\), got 146"):
        trace_step(open_raw(), 146)
    with pytest.raises(UsageError, match="`epoch` must be at least 0, got -1"):
        trace_step(open_raw(), 0, epoch=-1)
    root = copy(raw)
    for path in (root / "documents").iterdir():
        path.write_bytes(b"x")
    with pytest.raises(CorruptDatasetError, match="documents/0000"):
        trace_step(open_raw(local=root), 0)
