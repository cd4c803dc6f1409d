"""What loaders of tests give, and the states of them."""

import itertools
import json
from typing import Any

from streaming_ext import StreamingTokenLoader


def sequences(loader: StreamingTokenLoader, steps: int | None = None) -> list[list[int]]:
    """The numbers of the sequences of some steps, or of all that are left of the epoch."""
    return [batch["sequence_ids"].tolist() for batch in itertools.islice(loader, steps)]


def pairs_of(batch: dict[str, Any]) -> list[tuple[int, int]]:
    """Stream and number of the sequence of each row."""
    return list(zip(batch["stream_ids"].tolist(), batch["sequence_ids"].tolist(), strict=True))


def saved(loader: StreamingTokenLoader) -> dict[str, Any]:
    """The state, as it comes back from a file."""
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state
