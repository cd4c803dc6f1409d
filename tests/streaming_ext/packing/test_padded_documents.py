"""Documents that take multiples of tokens in a row, and context-parallel ranks that share them."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from streaming_ext import StreamingTokenLoader
from streaming_ext.base.errors import ConfigMismatchError, UsageError


def head_tail(values: np.ndarray, edges: list[int], rank: int, size: int) -> np.ndarray:
    """Chunk `rank` of 2 * size of each segment, and the one as far from its end, by hand."""
    own = []
    for begin, end in pairwise(edges):
        chunks = np.split(values[begin:end], 2 * size)
        own += [chunks[rank], chunks[2 * size - 1 - rank]]
    return np.concatenate(own)


@pytest.mark.parametrize(("size", "extras"), [(2, ["cu_seqlens"]), (4, [])])
def test_context_parallel_ranks_get_the_head_and_tail_of_each_document(
    open_packed, size, extras
) -> None:
    per_token = ["targets", "position_ids", "document_ids"]
    settings = {"document_multiple": 8, "sequence_length": 32, "batch_size": 2, "shuffle": True}
    whole = list(StreamingTokenLoader(open_packed(**settings, extras=[*per_token, "cu_seqlens"])))
    assert len(whole) > 5
    for rank in range(size):
        loader = StreamingTokenLoader(
            open_packed(**settings, extras=[*per_token, *extras], cp_rank=rank, cp_size=size,
                        cp_layout="documents", dp_rank=0, dp_world_size=1)
        )  # fmt: skip
        for batch, full in zip(loader, whole, strict=True):
            edges = full["cu_seqlens"].tolist()
            for name in ("tokens", *per_token):
                own = head_tail(full[name].numpy().reshape(-1), edges, rank, size)
                assert (batch[name].numpy() == own.reshape(2, 32 // size)).all()
            assert ("cu_seqlens" in batch) == bool(extras)
            assert not extras or torch.equal(batch["cu_seqlens"], full["cu_seqlens"])


def test_the_multiple_is_part_of_the_order(open_packed) -> None:
    settings = {"sequence_length": 32, "batch_size": 2, "shuffle": True}
    loader = StreamingTokenLoader(open_packed(**settings, document_multiple=8))
    plain = StreamingTokenLoader(open_packed(**settings))
    assert "document_multiple" not in plain.state_dict()["order"]
    with pytest.raises(ConfigMismatchError, match="document_multiple: the state has 8, this loade"):
        plain.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match=r"multiple of document_multiple=8, got 30"):
        open_packed(document_multiple=8, sequence_length=30)
    with pytest.raises(UsageError, match="give packing='best_fit'"):
        open_packed(document_multiple=8, packing=None)
    with pytest.raises(UsageError, match=r"'documents'.*8 equal chunks.*document_multiple=8 or a"):
        open_packed(**settings, document_multiple=4, cp_rank=0, cp_size=4, cp_layout="documents",
                    dp_rank=0, dp_world_size=1)  # fmt: skip
