"""Loaders of the raw dataset."""

from collections.abc import Callable
from typing import Any

import pytest

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader


@pytest.fixture
def load(open_raw: Callable[..., StreamingTokenDataset]) -> Callable[..., StreamingTokenLoader]:
    """Load the raw dataset as one rank, shuffled unless told otherwise."""

    def make(*, num_workers: int = 0, **changes: Any) -> StreamingTokenLoader:
        return StreamingTokenLoader(open_raw(**changes), num_workers=num_workers)

    return make
