"""The documents of a split that a condition chooses: `TokenStream(where=...)`."""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, Final

import numpy as np
import xxhash

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import UsageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.condition import Condition
from streaming_ext.format.provenance import ListedRows, SourceRows, require_columns
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.chosen import VERSION, ChosenDocuments
from streaming_ext.reading.made_once import made_once, write_directory, write_words
from streaming_ext.reading.source import TokenSource
from streaming_ext.training.arguments import TokenStream
from streaming_ext.training.features.documents import LocatedDocuments, split_documents
from streaming_ext.training.features.domains import COLUMN, name_of_value

_log = logging.getLogger(__name__)
_VALUES: Final = (str, bool, int, float, type(None))


def write_chosen(file: BinaryIO, cache: ShardCache, condition: Condition) -> None:
    """Write the map of a split; see `ChosenDocuments`.

    Args:
        file: the file, still empty.
        cache: the cache of the split.
        condition: the condition that chosen documents meet.

    Raises:
        UsageError: the dataset lacks a column of the condition, or no document meets it.
        CorruptDatasetError: a record or table of documents is missing or damaged.
    """
    listed = split_documents(cache)
    require_columns(condition, listed.manifest.columns, where=cache.source.url)
    documents = tokens = 0

    def label(rows: ListedRows, of_split: Flags, origins: SourceRows) -> Ints:
        return rows.where(condition, origins)[of_split].astype(np.int64)

    def words() -> Iterator[Ints]:
        nonlocal documents, tokens
        for part in mapped_ahead(partial(listed.read, label=label), listed.spans):
            starts, lengths = _ranges_of(part)
            ends = tokens + np.cumsum(lengths)
            yield np.stack([ends - lengths, starts], axis=1)
            documents, tokens = documents + int(part.labels.sum()), tokens + int(lengths.sum())
        yield np.array([tokens, cache.index.token_starts[-1]])

    digest = write_words(file, words())
    if not documents:
        raise UsageError(
            f"where={condition.text!r} holds for no document of split {cache.index.split!r} of "
            f"{cache.source.url}. Correct it, or leave the stream out."
        )
    write_directory(file, {"version": VERSION, "documents": documents, "xxh128": digest})


def _ranges_of(part: LocatedDocuments) -> tuple[Ints, Ints]:
    """Find first token and tokens of each range of consecutive chosen documents: (ranges,) each."""
    edges = np.flatnonzero(np.diff(part.labels, prepend=0, append=0))
    first, stop = edges[::2], edges[1::2]
    starts = part.starts[first]
    return starts, part.ends[stop - 1] - starts


def open_chosen(cache: ShardCache, where: str) -> ChosenDocuments:
    """Open the documents of a split that a condition chooses; a missing map is made.

    Args:
        cache: the cache of the split.
        where: the condition.

    Raises:
        UsageError: the dataset lists no documents or lacks a column, or no document is chosen.
        CorruptDatasetError: a record or table of documents is missing or damaged.
        StorageError: the map cannot be kept.
    """
    digest = xxhash.xxh3_64_hexdigest(f"{split_documents(cache).fingerprint} {where}".encode())
    return made_once(
        cache.beside / f"{cache.name}.where-{VERSION}-{digest}.map",
        opened=ChosenDocuments,
        make=partial(write_chosen, cache=cache, condition=Condition(where)),
    )


def streams_by_value(
    stream: TokenStream, by: str, proportions: Mapping[Any, float | str]
) -> list[TokenStream]:
    """Divide a stream by the values of a column.

    Args:
        stream: the stream of all documents.
        by: `column:NAME`.
        proportions: the proportion of each value; None stands for documents without a value.

    Raises:
        UsageError: `by` names no column, or a value is no text, number or truth value.
    """
    column = str(by).removeprefix(COLUMN)
    if column in ("", str(by)) or "`" in column:
        raise UsageError(
            f"`proportion_by` must be {COLUMN + 'NAME'!r}, for a column that was kept by "
            f"--keep-columns; got {by!r}."
        )
    if not isinstance(proportions, Mapping):
        raise UsageError(f"`proportions` must be a dict of values; got {proportions!r}.")
    streams = []
    for given, proportion in proportions.items():
        value = given.item() if isinstance(given, np.generic) else given
        if type(value) not in _VALUES or (type(value) is float and not math.isfinite(value)):
            raise UsageError(
                "`proportions` must name texts, finite numbers, True, False, or None for no value; "
                f"got {given!r}."
            )
        where = f"`{column}` " + ("is None" if value is None else f"== {value!r}")
        domain = name_of_value(value)
        streams.append(replace(stream, proportion=proportion, where=where, domain=domain))
    return streams


def log_left_out(source: TokenSource, by: str) -> None:
    """Log how many documents of a dataset have a value that no stream has.

    Args:
        source: the source of these streams.
        by: the column of the values.
    """
    listed = split_documents(source.reader.caches[0])
    every = listed.manifest.splits[listed.split].documents
    left_out = every - sum(each.documents for each in source.chosen if each)
    if left_out:
        _log.warning(
            "%s of %s documents have a value in %s that proportions= does not name: they are left "
            "out.",
            f"{left_out:,}",
            f"{every:,}",
            by,
        )
