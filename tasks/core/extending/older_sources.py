"""The sources of a shuffled dataset that is extended: those of a run are numbered behind them."""

from collections.abc import Sequence

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.manifest import ShuffleSummary
from streaming_ext.dataset.record import MOST_BAD_LISTED
from streaming_ext.dataset.shuffled.source_table import (
    SOURCES_PATH,
    Source,
    grown_sources_path,
    sources_of,
    table_bytes,
)
from streaming_ext.errors import CorruptDatasetError
from tasks.core.planning.run_plan import Parent
from tasks.core.storage import Storage


def older_sources(parent: Parent | None, storage: Storage) -> Sequence[Source]:
    """The sources of the generation that is extended; none where none is, or none is shuffled.

    Raises:
        CorruptDatasetError: their table is gone or damaged.
        StorageError: it cannot be read.
    """
    if parent is None or parent.manifest.shuffled is None:
        return ()
    file = parent.manifest.shuffled.sources
    try:
        data = storage.read(file.path)
        if content_hash(data) == file.xxh128:
            return sources_of(data)
    except FileNotFoundError:
        pass
    raise CorruptDatasetError(
        f"{storage}/{file.path} is gone or damaged: without it nothing tells what the dataset was "
        "made of. Put it back from a copy of the dataset."
    )


def joined_table(known: Sequence[Source], added: Sequence[Source]) -> tuple[bytes, str]:
    """The table of all sources as a file, and where it lies: no generation overwrites another's."""
    data = table_bytes([*known, *added])
    return data, grown_sources_path(content_hash(data)) if known else SOURCES_PATH


def with_older(summary: ShuffleSummary, parent: Parent | None) -> ShuffleSummary:
    """The sums over what is extended and what is added.

    Args:
        summary: of what is added, with the table of all sources.
        parent: what is extended, if anything is.
    """
    older = None if parent is None else parent.manifest.shuffled
    if older is None:
        return summary
    counts = (
        "files",
        "files_not_checked",
        "rows",
        "null_documents",
        "empty_documents",
        "bad_documents",
    )
    dropped = {
        name: count + older.dropped_documents.get(name, 0)
        for name, count in summary.dropped_documents.items()
    }
    return summary.model_copy(
        update={
            **{name: getattr(older, name) + getattr(summary, name) for name in counts},
            "dropped_documents": dropped,
            "bad_listed": (*older.bad_listed, *summary.bad_listed)[:MOST_BAD_LISTED],
        }
    )
