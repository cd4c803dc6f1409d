"""The batches and states of loaders in tests."""

import itertools
import json
from typing import Any

from streaming_ext import StreamingTokenLoader


def sequences(loader: StreamingTokenLoader, steps: int | None = None) -> list[list[int]]:
    """Return the sequence numbers of some steps, or of the rest of the epoch."""
    return [batch["sequence_ids"].tolist() for batch in itertools.islice(loader, steps)]


def pairs_of(batch: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the stream and the sequence number of each row."""
    return list(zip(batch["stream_ids"].tolist(), batch["sequence_ids"].tolist(), strict=True))


def saved(loader: StreamingTokenLoader) -> dict[str, Any]:
    """Return the state after a round trip through JSON."""
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state
