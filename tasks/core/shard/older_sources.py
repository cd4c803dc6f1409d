"""The sources of a shuffled dataset that is extended: those of a run are numbered behind them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streaming_ext.base.errors import ConfigMismatchError, CorruptDatasetError
from streaming_ext.format.manifest import ShuffleSummary
from streaming_ext.format.record import MOST_BAD_LISTED, PartRecord, SpanRecord
from streaming_ext.format.schema import content_hash
from streaming_ext.format.shuffled import (
    SOURCES_PATH,
    Source,
    grown_sources_path,
    sources_of,
    table_bytes,
)
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store import Storage
from streaming_ext.text.identity import identify
from streaming_ext.text.sources import SourceFile
from tasks.core.shard.run_plan import Parent
from tasks.core.shard.sources import shortened

_IO_THREADS = 8
_HUB_REVISION = re.compile(r"(hf://[^@]+)@[^/]+/")


def place_of(url: str) -> str:
    """A source's URL but for the revision, which is another one whenever the Hub's dataset grew."""
    return _HUB_REVISION.sub(r"\1/", url)


def all_spans(records: Mapping[int, PartRecord]) -> list[SpanRecord]:
    """What parts were made of."""
    return [source_span for record in records.values() for source_span in record.made_of]


def spans_of(sources: Iterable[Source]) -> list[SpanRecord]:
    """The same of the sources of a shuffled dataset."""
    return [
        SpanRecord(source=source.identity, span=source.span, rows=source.rows) for source in sources
    ]


def new_sources(
    storage: Storage,
    made_of: Iterable[SpanRecord],
    sources: Sequence[SourceFile],
    options: ReadOptions,
) -> tuple[SourceFile, ...]:
    """Those of the sources that are not in the dataset; those that are must not have changed.

    Of local files that are in it, the bytes are read and hashed.

    Args:
        storage: names the dataset in messages.
        made_of: all that it was made of.
        sources: that are asked for.
        options: what is read of them.

    Raises:
        ConfigMismatchError: a file is in the dataset with other bytes; names them all.
    """
    there: dict[str, list[SpanRecord]] = {}
    for source_span in made_of:
        there.setdefault(place_of(source_span.source.url), []).append(source_span)
    known = [source for source in sources if place_of(source.url) in there]
    with ThreadPoolExecutor(_IO_THREADS) as threads:
        found = threads.map(
            lambda source: _difference(source, there[place_of(source.url)], options), known
        )
        differences = [words for words in found if words is not None]
    if differences:
        raise ConfigMismatchError(
            f"{storage} holds other bytes of these sources, so some of their texts would be there "
            "twice:\n  "
            + "\n  ".join(shortened(differences))
            + "\nLeave them out, or give what is new under other names."
        )
    return tuple(source for source in sources if place_of(source.url) not in there)


def _difference(
    source: SourceFile, spans: Iterable[SpanRecord], options: ReadOptions
) -> str | None:
    for source_span in spans:
        made = source_span.source
        if source.size != made.size:
            return f"{source.url}: {made.size} bytes in the dataset, {source.size} now"
        version = source.version
        if version is None:
            version = identify(
                source, Path(source.url), span=source_span.span, options=options
            ).version
        if version != made.version:
            return f"{source.url}: content {made.version} in the dataset, {version} now"
    return None


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
