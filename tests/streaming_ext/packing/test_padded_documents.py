"""Documents that take multiples of tokens in a row, and context-parallel ranks that share them."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from streaming_ext import StreamingTokenLoader
from streaming_ext.base.errors import (
    ConfigMismatchError,
    UsageError,
)
from tests.streaming_ext.build import EOT
from tests.streaming_ext.packing.packed import MASKS, documents_of


def padded_masks(row: list[int], sizes: list[int], multiple: int, goes_on: int | None) -> Any:
    """Of a row whose segments have `sizes` tokens and take multiples: masks and `cu_seqlens`."""
    rooms = [-(-size // multiple) * multiple for size in sizes]
    segments = [*rooms, len(row) - sum(rooms)] if sum(rooms) < len(row) else rooms
    targets = [*row[1:], -100 if goes_on is None else goes_on]
    position = 0
    for size, room in zip([*sizes, 0], [*rooms, len(row) - sum(rooms)], strict=True):
        if size < room:
            begin = max(0, position + size - 1)
            targets[begin : position + room] = [-100] * (position + room - begin)
        position += room
    return {
        "position_ids": [inside for room in segments for inside in range(room)],
        "document_ids": [number for number, room in enumerate(segments) for _ in range(room)],
        "targets": targets,
    }, segments


def sizes_in(row: list[int], multiple: int) -> list[int]:
    """The sizes of the segments of a row: each begins at a multiple, and ends before padding."""
    sizes, position = [], 0
    while position < len(row) and row[position] != EOT:
        stop = next((at for at in range(position, len(row)) if row[at] == EOT), len(row) - 1) + 1
        sizes.append(stop - position)
        position += -(-(stop - position) // multiple) * multiple
        assert all(token == EOT for token in row[stop:position])
    assert all(token == EOT for token in row[position:])
    return sizes


@pytest.mark.parametrize(("multiple", "workers"), [(4, 0), (8, 1)])
def test_documents_that_take_multiples(open_packed, raw, multiple, workers) -> None:
    loader = StreamingTokenLoader(
        open_packed(document_multiple=multiple, sequence_length=32, batch_size=2, shuffle=True,
                    extras=MASKS), num_workers=workers,
    )  # fmt: skip
    found: Counter[tuple[int, ...]] = Counter()
    inner = 0
    for batch in loader:
        edges = [0]
        for number, row in enumerate(batch["tokens"].tolist()):
            sizes = sizes_in(row, multiple)
            last = row[sum(-(-size // multiple) * multiple for size in sizes) - 1]
            goes_on = None if last == EOT else batch["targets"][number, -1].item()
            masks, segments = padded_masks(row, sizes, multiple, goes_on)
            for name, expected in masks.items():
                assert batch[name][number].tolist() == expected, name
            edges += [edges[-1] + sum(segments[: n + 1]) for n in range(len(segments))]
            position = 0
            for size in sizes:
                found[tuple(row[position : position + size])] += 1
                inner += size % multiple > 0
                position += -(-size // multiple) * multiple
        assert batch["cu_seqlens"].tolist() == edges
        assert all(edge % multiple == 0 for edge in edges)
        assert batch["max_seqlen"] == max(np.diff(edges))
    assert inner > 50
    short = Counter(tuple(each) for each in documents_of(raw) if len(each) <= 32)
    assert sum((short - found).values()) <= 4  # of the last rows, less than a global batch


def head_tail(values: np.ndarray, edges: list[int], rank: int, size: int) -> np.ndarray:
    """Piece `rank` of 2 * size of each segment, and the one as far from its end, by hand."""
    own = []
    for begin, end in pairwise(edges):
        segments = np.split(values[begin:end], 2 * size)
        own += [segments[rank], segments[2 * size - 1 - rank]]
    return np.concatenate(own)


@pytest.mark.parametrize("asked", [["cu_seqlens"], []])
@pytest.mark.parametrize("size", [2, 4])
def test_context_parallel_ranks_get_the_head_and_tail_of_each_document(
    open_packed, size, asked
) -> None:
    per_token = ["targets", "position_ids", "document_ids"]
    settings = {"document_multiple": 8, "sequence_length": 32, "batch_size": 2, "shuffle": True}
    whole = list(StreamingTokenLoader(open_packed(**settings, extras=[*per_token, "cu_seqlens"])))
    assert len(whole) > 5
    for rank in range(size):
        loader = StreamingTokenLoader(
            open_packed(**settings, extras=[*per_token, *asked], cp_rank=rank, cp_size=size,
                        cp_layout="documents", dp_rank=0, dp_world_size=1)
        )  # fmt: skip
        for batch, full in zip(loader, whole, strict=True):
            edges = full["cu_seqlens"].tolist()
            for name in ("tokens", *per_token):
                own = head_tail(full[name].numpy().reshape(-1), edges, rank, size)
                assert (batch[name].numpy() == own.reshape(2, 32 // size)).all()
            assert ("cu_seqlens" in batch) == bool(asked)
            assert not asked or torch.equal(batch["cu_seqlens"], full["cu_seqlens"])


def test_the_multiple_is_part_of_the_order(open_packed) -> None:
    settings = {"sequence_length": 32, "batch_size": 2, "shuffle": True}
    loader = StreamingTokenLoader(open_packed(**settings, document_multiple=8))
    plain = StreamingTokenLoader(open_packed(**settings))
    assert "document_multiple" not in plain.state_dict()["order"]
    with pytest.raises(ConfigMismatchError, match="document_multiple: the state has 8, this loade"):
        plain.load_state_dict(loader.state_dict())
    for trace, row in zip(loader.trace(0), next(iter(loader))["tokens"].tolist(), strict=True):
        for span in trace.spans:
            assert span.position % 8 == 0
            assert row[span.position + span.tokens - 1] == EOT or span.position + span.tokens == 32
            assert span.position == 0 or row[span.position - 1] == EOT
    with pytest.raises(UsageError, match=r"multiple of document_multiple=8, got 30"):
        open_packed(document_multiple=8, sequence_length=30)
    with pytest.raises(UsageError, match="give packing='best_fit'"):
        open_packed(document_multiple=8, packing=None)
    with pytest.raises(UsageError, match=r"'documents'.*8 equal chunks.*document_multiple=8 or a"):
        open_packed(**settings, document_multiple=4, cp_rank=0, cp_size=4, cp_layout="documents",
                    dp_rank=0, dp_world_size=1)  # fmt: skip
