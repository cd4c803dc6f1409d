"""Datasets that are read in packed rows, in groups small enough that there are several."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenDataset
from streaming_ext.training.features import packing as opening
from tests.streaming_ext.build import EOT, Built

Open = Callable[..., StreamingTokenDataset]
MASKS = ["targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen", "starts_inside"]
LENGTH = 16


def documents_of(built: Built, split: str = "train") -> list[list[int]]:
    """The documents of a split, end-of-text ids with them."""
    documents: list[list[int]] = [[]]
    for token in built.streams[split].tolist():
        documents[-1].append(token)
        if token == EOT:
            documents.append([])
    return [each for each in documents if len(each) > 1]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven groups of 270 documents."""
    monkeypatch.setattr(opening, "GROUP_DOCUMENTS", 40)


@pytest.fixture
def open_packed(open_raw: Open, raw: Built, tmp_path: Path) -> Open:
    def make(**changes: Any) -> StreamingTokenDataset:
        settings = {
            "packing": "best_fit",
            "sequence_length": LENGTH,
            "shuffle_block_size": 20,
            "remote": str(raw.root),
            "local": tmp_path / "cache",
        }
        return open_raw(**(settings | changes))

    return make
