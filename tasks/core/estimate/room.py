"""Whether the output has room for the runs of the first stage and for the dataset beside them."""

import numpy as np

from streaming_ext.errors import SourceError, StorageError, UsageError
from tasks.core.estimate.looking import look
from tasks.core.planning.run_plan import RunPlan
from tasks.core.storage import Storage

_LOOKED_AT = 4  # source files
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
    sources = {
        piece.source.url: piece.source for part in plan.todo for piece in plan.parts[part].pieces
    }
    step = max(1, len(sources) // _LOOKED_AT)
    try:
        footers, _ = look(
            list(sources.values())[::step][:_LOOKED_AT], plan.spec.read_options, seed=0, least=1
        )
    except (SourceError, UsageError):  # said when its turn comes
        return 0.0
    # of a file without documents nothing is told
    text_a_byte = sum(sum(footer.column_bytes) for footer in footers) / max(
        1, sum(footer.source.size for footer in footers)
    )
    size = sum(plan.parts[part].size for part in plan.todo)
    kept = 1.0 if not plan.spec.filters.given() else 0.0  # who knows how many documents stay
    ids = kept * size * text_a_byte / _MOST_BYTES_A_TOKEN * np.dtype(plan.spec.dtype).itemsize
    packed = _PACKED if plan.spec.deduplicate is None else 0.0  # who knows how much is copies
    return float(ids) * (1 + packed)
