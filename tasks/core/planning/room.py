"""Whether the output has room for the runs of the first stage and for the dataset beside them."""

import numpy as np

from streaming_ext.errors import SourceError, StorageError, UsageError
from streaming_ext.text.formats import format_of
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from tasks.core.planning.run_plan import RunPlan
from tasks.core.storage import Storage

_SOURCES = 4  # looked into
_MOST_BYTES_A_TOKEN = 6.0  # of text: few tokenizers reach it, so what is refused is sure not to fit
_PACKED = 0.5  # shards beside runs, at their least


def require_room(plan: RunPlan, storage: Storage) -> None:
    """Refuse a run whose runs and shards are sure not to fit, before any work.

    Raises:
        StorageError: saying what it takes and what there is.
    """
    free = storage.free_bytes()
    if free is None or not plan.todo:
        return
    needed = least_bytes(plan)
    if needed > free:
        raise StorageError(
            f"{storage} has {free / 1e9:,.1f} GB free; with --shuffle or --deduplicate, runs lie "
            "there until the dataset is published, and they and the shards take "
            f"{needed / 1e9:,.1f} GB or more (`shardmill plan` tells). Free some, or use another "
            "--output."
        )


def least_bytes(plan: RunPlan) -> float:
    """What the parts that are left to tokenize take at least, as runs and as shards."""
    if plan.spec.filters.given():
        return 0.0  # who knows how many documents stay
    pieces = {
        piece.source.url: piece.source for part in plan.todo for piece in plan.part(part).pieces
    }
    sources = list(pieces.values())
    text_bytes = source_bytes = 0
    for source in sources[:: max(1, len(sources) // _SOURCES)][:_SOURCES]:
        try:
            look = format_of(source.url, plan.spec.read_options).look(
                SourceFileBytes(source), plan.spec.read_options
            )
        except (SourceError, UsageError):  # its own part reports it
            return 0.0
        text_bytes += sum(block.size for block in look.blocks) if look else 0
        source_bytes += source.size
    size = sum(plan.part(part).size for part in plan.todo)
    tokens = size * text_bytes / max(source_bytes, 1) / _MOST_BYTES_A_TOKEN
    packed = _PACKED if plan.spec.deduplicate is None else 0.0  # who knows how much is copies
    return tokens * np.dtype(plan.spec.dtype).itemsize * (1 + packed)
