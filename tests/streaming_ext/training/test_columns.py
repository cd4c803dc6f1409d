"""Columns: the loss mask, and one that is added by its class and a line of the table."""

from typing import Any

import numpy as np
import pytest
import torch

from streaming_ext.training.columns import COLUMNS, Batch, ReadRows, RowColumn


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sequence_length": 16, "packing": "best_fit", "document_multiple": 4},
        {"split": "holdout", "batch_size": 16},
        {"max_repeated_ngram": 1},
        {"cp_rank": 1, "cp_size": 2},
    ],
    ids=lambda settings: next(iter(settings), "plain"),
)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_loss_mask_is_where_targets_are(load, settings, workers) -> None:
    extras = ["targets", "loss_mask"]
    both = load(extras=extras, num_workers=workers, **settings)
    alone = load(extras="loss_mask", **settings)
    hidden = 0
    for batch, other in zip(both, alone, strict=True):
        assert batch["loss_mask"].dtype == torch.bool
        assert (batch["loss_mask"] == (batch["targets"] != -100)).all()
        assert (batch["loss_mask"] == other["loss_mask"]).all()
        hidden += int((~batch["loss_mask"]).sum())
    assert hidden


class FirstTokens(RowColumn):
    """The first token of each row: (rows,)."""

    name = "first_tokens"

    def identity(self) -> dict[str, Any]:
        return {"first": "token"}

    def add(self, batch: Batch, read: ReadRows) -> None:
        batch[self.name] = read.tokens[:, 0].astype(np.int64)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_column_is_a_class_and_a_line_of_the_table(load, monkeypatch, workers) -> None:
    monkeypatch.setitem(COLUMNS, FirstTokens.name, FirstTokens)
    loader = load(extras="first_tokens", num_workers=workers)
    batches = [*loader]
    assert len(batches) == len(loader)
    for batch in batches:
        assert list(batch) == ["tokens", "first_tokens"]
        assert (batch["first_tokens"] == batch["tokens"][:, 0]).all()
    assert loader.state_dict()["order"]["first"] == "token"
