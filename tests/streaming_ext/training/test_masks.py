"""Tokens and masks, compared with a reference that goes token by token."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

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
    """The tokens and masks of a split, computed one token after another."""

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
        """Return the offsets in a row at which its segments begin."""
        begins = [0]
        for offset in range(1, length):
            at = start + offset
            ended = self.stream[at - 1] == EOT and not self.padding[at]
            if ended or (self.padding[at] and not self.padding[at - 1]):
                begins.append(offset)
        return begins


def assert_as_reference(batch: dict[str, Any], reference: Reference) -> list[int]:
    """Compare the tokens and masks of a batch; return where its segments begin, and its end.

    In a batch that is filled up, only rows that hold sequences are compared.
    """
    length = batch["tokens"].shape[1]
    bounds = [0]
    for row, sequence in enumerate(batch["sequence_ids"].tolist()):
        if sequence < 0:
            assert (batch["targets"][row] == -100).all()
            return bounds
        start = sequence * length
        begins = reference.segments(start, length)
        targets = [reference.target(start + i, row_end=i == length - 1) for i in range(length)]
        number = np.searchsorted(begins, np.arange(length), side="right") - 1
        assert batch["tokens"][row].tolist() == reference.stream[start : start + length]
        assert batch["targets"][row].tolist() == targets
        assert batch["document_ids"][row].tolist() == number.tolist()
        positions = np.arange(length) - np.array(begins)[number]
        assert batch["position_ids"][row].tolist() == positions.tolist()
        inside = start > 0 and reference.stream[start - 1] != EOT
        assert bool(batch["starts_inside"][row]) == inside
        bounds += [row * length + end for end in [*begins[1:], length]]
    assert batch["cu_seqlens"].tolist() == bounds
    assert batch["max_seqlen"] == max(np.diff(bounds))
    return bounds


@pytest.fixture
def compared(load) -> Callable[..., tuple[int, int]]:
    """Compare an epoch with the reference; return the numbers of compared tokens and segments."""

    def compare(built: Built, *, split: str = "train", **settings: Any) -> tuple[int, int]:
        reference = Reference(built, split)
        tokens = segments = 0
        for batch in load(local=built.root, split=split, extras=EXTRAS, **settings):
            bounds = assert_as_reference(batch, reference)
            tokens += bounds[-1]
            segments += len(bounds) - 1
        return tokens, segments

    return compare


@pytest.mark.parametrize(
    ("length", "split", "workers", "least"),
    [
        (1, "train", 0, 4676),
        (3, "train", 1, 4668),
        (24, "holdout", 1, 96),
        (50, "train", 0, 4600),
        ("0:4 192:8 900:16", "train", 0, 4500),
    ],
)
def test_they_equal_the_reference(raw, compared, length, split, workers, least) -> None:
    assert any(Reference(raw, split).padding)
    tokens, _ = compared(raw, sequence_length=length, split=split, num_workers=workers)
    assert tokens >= least


def test_types_are_those_that_models_take(load) -> None:
    batch = next(iter(load(extras=EXTRAS)))
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


def test_documents_of_a_token_and_padding_within(compared, tmp_path) -> None:
    """More boundaries than a message has room for, and padding that our parts never have."""
    rng = np.random.default_rng(1)
    ids = np.where(rng.random(2000) < 0.6, EOT, 5)
    built = build(
        tmp_path / "data",
        [[("train", ids[:900].tolist()), ("train", [1])], [("train", ids[900:].tolist())]],
        compression="none",
        shard_samples=9,
    )
    tokens, _ = compared(built, sequence_length=40, num_workers=1)
    assert tokens > 1600


@pytest.mark.parametrize(("length", "workers"), [(64, 1), (1000, 0)])
def test_long_documents(compared, tmp_path, length, workers) -> None:
    """Segments of hundreds of tokens, between them some of no, one and two tokens, and padding."""
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
    tokens, segments = compared(built, sequence_length=length, num_workers=workers)
    assert tokens > 25_000
    # The lengths of segments decide how positions are written; both ways are covered.
    assert (tokens > 140 * segments) == (length > 64)


def test_masks_share_no_memory(load) -> None:
    for batch in itertools.islice(load(sequence_length=24, extras=EXTRAS), 5):
        names = ["tokens", "targets", "position_ids", "document_ids", "cu_seqlens"]
        before = {name: batch[name].clone() for name in names}
        for name in names:
            batch[name].fill_(7)
            later = names[names.index(name) + 1 :]
            assert all((batch[other] == before[other]).all() for other in later)


def test_memory_of_dropped_batches_is_used_again(load) -> None:
    assert len({batch["tokens"].data_ptr() for batch in load(extras=[])}) <= 3
