"""Masks against a reference that walks token by token."""

from typing import Any

import numpy as np
import pytest
import torch

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.format.index import read_index
from streaming_ext.store.remote import Remote
from tests.streaming_ext.build import EOT, Built, build

EXTRAS = [
    "targets",
    "position_ids",
    "document_ids",
    "cu_seqlens",
    "max_seqlen",
    "starts_inside",
    "sequence_ids",
]


class Reference:
    """What each token of a split is, found one after another."""

    def __init__(self, built: Built, split: str) -> None:
        index = read_index(Remote(url=str(built.root)), split)
        self.stream = [int(token) for token in built.streams[split]]
        self.last_of_shard = set((index.token_starts[1:] - 1).tolist())
        self.padding = [
            at > 0
            and self.stream[at] == EOT == self.stream[at - 1]
            and at - 1 not in self.last_of_shard
            for at in range(len(self.stream))
        ]

    def target(self, at: int, *, row_end: bool) -> int:
        if at + 1 == len(self.stream) or self.padding[at] or self.padding[at + 1]:
            return -100
        return -100 if row_end and at in self.last_of_shard else self.stream[at + 1]

    def segments(self, start: int, length: int) -> list[int]:
        """Where segments of a row begin, from the row's start."""
        begins = [0]
        for offset in range(1, length):
            at = start + offset
            ended = self.stream[at - 1] == EOT and not self.padding[at]
            if ended or (self.padding[at] and not self.padding[at - 1]):
                begins.append(offset)
        return begins


def batches_of(built: Built, *, workers: int = 0, **settings: Any) -> list[dict[str, Any]]:
    dataset = StreamingTokenDataset(
        local=built.root,
        batch_size=3,
        shuffle=True,
        extras=EXTRAS,
        dp_rank=0,
        dp_world_size=1,
        **settings,
    )
    return list(StreamingTokenLoader(dataset, num_workers=workers))


def assert_as_reference(batch: dict[str, Any], reference: Reference, length: int) -> list[int]:
    """Compare all masks of a batch; returns where its segments begin, and its end.

    Of a batch that is filled up, rows are compared as far as its sequences go; nothing is returned.
    """
    bounds = [0]
    for row, sequence in enumerate(batch["sequence_ids"].tolist()):
        if sequence < 0:
            assert (batch["targets"][row] == -100).all()
            return []
        start = sequence * length
        begins = reference.segments(start, length)
        targets = [reference.target(start + i, row_end=i == length - 1) for i in range(length)]
        assert batch["targets"][row].tolist() == targets
        number = np.searchsorted(begins, np.arange(length), side="right") - 1
        assert batch["document_ids"][row].tolist() == number.tolist()
        positions = np.arange(length) - np.array(begins)[number]
        assert batch["position_ids"][row].tolist() == positions.tolist()
        inside = start > 0 and reference.stream[start - 1] != EOT
        assert bool(batch["starts_inside"][row]) == inside
        bounds += [row * length + end for end in [*begins[1:], length]]
    assert batch["cu_seqlens"].tolist() == bounds
    assert batch["max_seqlen"] == max(np.diff(bounds))
    return bounds


@pytest.mark.parametrize(
    ("length", "split", "workers"),
    [(1, "train", 0), (3, "train", 1), (24, "holdout", 1), (50, "train", 0)],
)
def test_they_equal_the_reference(raw, length, split, workers) -> None:
    reference = Reference(raw, split)
    assert any(reference.padding)
    seen = 0
    for batch in batches_of(raw, sequence_length=length, split=split, workers=workers):
        assert_as_reference(batch, reference, length)
        seen += int((batch["sequence_ids"] >= 0).sum())
    assert seen > 0


def test_types_are_those_that_models_take(raw) -> None:
    batch = batches_of(raw)[0]
    assert type(batch.pop("max_seqlen")) is int
    assert all(value.is_contiguous() for value in batch.values())
    assert {name: value.dtype for name, value in batch.items()} == {
        "tokens": torch.int64,
        "targets": torch.int64,
        "sequence_ids": torch.int64,
        "position_ids": torch.int32,
        "document_ids": torch.int32,
        "cu_seqlens": torch.int32,
        "starts_inside": torch.bool,
    }


def test_documents_of_a_token_and_padding_within(tmp_path) -> None:
    """More boundaries than a message has room for; padding that no part of ours would have."""
    rng = np.random.default_rng(1)
    ids = np.where(rng.random(2000) < 0.6, EOT, 5)
    built = build(
        tmp_path / "data",
        [[("train", ids[:900].tolist()), ("train", [1])], [("train", ids[900:].tolist())]],
        compression="none",
        shard_samples=9,
    )
    length = 40
    reference = Reference(built, "train")
    seen = 0
    for batch in batches_of(built, sequence_length=length, workers=1):
        assert_as_reference(batch, reference, length)
        seen += len(batch["sequence_ids"])
    assert seen > 40


@pytest.mark.parametrize(("length", "workers"), [(64, 1), (1000, 0)])
def test_long_documents(tmp_path, length, workers) -> None:
    """Segments of hundreds of tokens, some of one, two and none between them, and padding."""
    rng = np.random.default_rng(length)
    ids = rng.integers(1, 50, 30_000)
    ids[ids == EOT] = 60
    ends = rng.choice(len(ids) - 9, 30, replace=False)
    ids[ends] = EOT
    ids[ends[:10] + 1] = EOT  # padding of one token
    ids[ends[10:15, None] + [2, 4, 5, 6]] = EOT  # short documents, padding of two tokens
    built = build(
        tmp_path / "data",
        [[("train", ids[:17_500].tolist())], [("train", ids[17_500:].tolist())]],
        compression="none",
        shard_samples=600,
    )
    reference = Reference(built, "train")
    tokens = segments = 0
    for batch in batches_of(built, sequence_length=length, workers=workers):
        bounds = assert_as_reference(batch, reference, length)
        tokens += bounds[-1]
        segments += len(bounds) - 1
    assert tokens > 25_000
    # Both ways of laying down positions are met, since it depends on the length of segments.
    assert (tokens > 140 * segments) == (length > 64)


def test_masks_share_no_memory(raw) -> None:
    for batch in batches_of(raw, sequence_length=24)[:5]:
        names = ["tokens", "targets", "position_ids", "document_ids", "cu_seqlens"]
        before = {name: batch[name].clone() for name in names}
        for name in names:
            batch[name].fill_(7)
            later = names[names.index(name) + 1 :]
            assert all((batch[other] == before[other]).all() for other in later)


def test_memory_of_dropped_batches_is_used_again(raw) -> None:
    dataset = StreamingTokenDataset(local=raw.root, batch_size=3, dp_rank=0, dp_world_size=1)
    positions = {batch["tokens"].data_ptr() for batch in StreamingTokenLoader(dataset)}
    assert len(positions) <= 3
