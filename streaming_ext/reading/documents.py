"""The documents of a split in the order of its token stream: where each lies, and its source."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import numpy as np

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.format.layout import SPLITS, Split
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.provenance import (
    DocumentRows,
    SourceRow,
    SourceRows,
    read_provenance,
)
from streaming_ext.format.reading import listed_record, read_listed
from streaming_ext.format.record import PartRecord
from streaming_ext.format.shuffled import sources_of
from streaming_ext.reading.cache import ShardCache

Item = TypeVar("Item")
Result = TypeVar("Result")
_AT_ONCE: Final = 8  # parts that are read ahead of their use


class Documents(NamedTuple):
    """Some documents: both of shape (documents,).

    Attributes:
        starts: first token of each in the split's stream.
        lengths: tokens of each, its end-of-text id counted.
    """

    starts: Ints
    lengths: Ints


class PartSpan(NamedTuple):
    """A part, its first token in the split's stream, and the token after its last."""

    part: int
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class PartDocuments:
    """All documents of a part in one split, in the order of the stream.

    Attributes:
        origins: source files of the part.
        begin: first token of the part in the split's stream.
        lengths: tokens of each, its end-of-text id counted: (documents,).
        rows: of the part, or in a shuffled dataset of the sources: (documents,).
        sources: numbers of the sources in a shuffled dataset: (documents,).
        labels: see `read_part`: (documents,).
    """

    origins: SourceRows
    begin: int
    lengths: Ints
    rows: Ints
    sources: Ints
    labels: Ints

    @cached_property
    def ends(self) -> Ints:
        """The token after each: (documents,)."""
        return self.begin + np.cumsum(self.lengths)

    @cached_property
    def starts(self) -> Ints:
        """First token of each: (documents,)."""
        return self.ends - self.lengths

    @cached_property
    def files(self) -> list[tuple[str, int]]:
        """URL of each source file, and the byte that its rows are counted from."""
        return self.origins.files

    @cached_property
    def in_files(self) -> tuple[Ints, Ints]:
        """Number of the file of each document, and its row there: (documents,) each."""
        return self.origins.numbered(self.rows, self.sources)

    def source_row(self, document: int) -> SourceRow:
        """The source file and row of a document."""
        numbers, rows = self.in_files
        url, from_byte = self.files[numbers[document]]
        return SourceRow(url, int(rows[document]), from_byte)


def manifest_of(cache: ShardCache) -> tuple[Manifest, Split]:
    """The manifest of a dataset that lists its documents, and the split of a cache.

    Raises:
        UsageError: the dataset does not list its documents.
    """
    manifest = cache.index.manifest
    if manifest is None:
        raise UsageError(
            f"{cache.source.url} has no lists of documents, which packing, exclude, domain_by and "
            "traces need. Make the dataset with `shardmill shard`, or leave them out."
        )
    return manifest, next(split for split in SPLITS if split == cache.index.split)


@lru_cache(maxsize=16)
def part_spans(cache: ShardCache) -> list[PartSpan]:
    """The parts that have shards in a split, in order."""
    index = cache.index
    if not index.raw_names:
        return []
    numbers = np.array([int(name.partition("/")[0]) for name in index.raw_names], np.int64)
    parts, first = np.unique(numbers, return_index=True)
    begins = np.append(index.token_starts[first], index.token_starts[-1]).tolist()
    return [*map(PartSpan, parts.tolist(), begins, begins[1:])]


def part_record(cache: ShardCache, part: int) -> PartRecord:
    """The record of a part.

    Raises:
        CorruptDatasetError: it is missing or damaged.
    """
    manifest, _ = manifest_of(cache)
    listed = manifest.parts[part].record
    where = f"{cache.source.url}/{listed.path}"
    return listed_record(read_listed(cache.source, listed), manifest, part, where=where)


def origins_of(cache: ShardCache, record: PartRecord) -> SourceRows:
    """The source files of a part's documents."""
    manifest, _ = manifest_of(cache)
    return SourceRows.of_part(record, manifest) if manifest.shuffled is None else _shuffled(cache)


@lru_cache(maxsize=16)
def _shuffled(cache: ShardCache) -> SourceRows:
    manifest, _ = manifest_of(cache)
    assert manifest.shuffled is not None  # noqa: S101 - the caller has looked
    return SourceRows.of_sources(sources_of(read_listed(cache.source, manifest.shuffled.sources)))


def read_part(
    cache: ShardCache,
    span: PartSpan,
    *,
    label: Callable[[DocumentRows, Flags], Ints] | None = None,
) -> PartDocuments:
    """The documents of a part.

    Args:
        cache: of the split.
        span: the part.
        label: gives each document that is chosen from a table's batch a number.

    Raises:
        UsageError: the dataset does not list its documents.
        CorruptDatasetError: a record or table of documents is missing or damaged, or contradicts
            the shards.
    """
    _, split = manifest_of(cache)
    record = part_record(cache, span.part)
    arrays = [np.empty((4, 0), np.int64)]  # lengths, rows, sources and labels of each batch
    try:
        for some in read_provenance(read_listed(cache.source, record.documents)):
            chosen = some.of(split)
            rows = some.rows[chosen]
            sources = np.zeros_like(rows) if some.sources is None else some.sources[chosen]
            labels = np.zeros_like(rows) if label is None else label(some, chosen)
            arrays.append(np.stack([some.tokens[chosen] + 1, rows, sources, labels]))
    except CorruptDatasetError as error:
        raise CorruptDatasetError(f"{cache.source.url}/{record.documents.path}: {error}") from error
    lengths, rows, sources, labels = np.concatenate(arrays, axis=1)
    total, stored = int(lengths.sum()), span.end - span.begin
    if not 0 <= stored - total < cache.index.sample_tokens:
        raise CorruptDatasetError(
            f"{cache.source.url}: the documents of part {span.part} have {total} tokens, its "
            f"shards {stored}. Run `shardmill verify` on it."
        )
    return PartDocuments(
        origins=origins_of(cache, record),
        begin=span.begin,
        lengths=lengths,
        rows=rows,
        sources=sources,
        labels=labels,
    )


@lru_cache(maxsize=32)  # some hundred megabytes at most; caches are never equal
def read_documents(cache: ShardCache, span: PartSpan) -> PartDocuments:
    """`read_part`; the last parts are kept."""
    return read_part(cache, span)


def documents_of(cache: ShardCache) -> Iterator[Documents]:
    """All documents of a split, part by part; see `read_part` for errors."""
    for part in mapped_ahead(partial(read_part, cache), part_spans(cache), threads=_AT_ONCE):
        yield Documents(part.starts, part.lengths)


def mapped_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int
) -> Iterator[Result]:
    """The results of a function for each item, in order, made by threads ahead of their use."""
    items = iter(items)
    with ThreadPoolExecutor(threads, thread_name_prefix="shardmill-ahead") as pool:
        waiting = deque(pool.submit(function, item) for item in islice(items, threads))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(function, item) for item in islice(items, 1))
            yield result


def documents_between(cache: ShardCache, begin: int, end: int) -> Iterator[PartDocuments]:
    """The parts that hold any of the tokens [begin, end) of a split; see `read_part` for errors."""
    manifest_of(cache)
    for span in part_spans(cache):
        if span.begin < end and span.end > begin:
            yield read_documents(cache, span)


def parts_with(cache: ShardCache, urls: set[str]) -> Iterator[PartDocuments]:
    """The parts that may hold documents of some source files; see `read_part` for errors."""
    manifest, _ = manifest_of(cache)
    for span in part_spans(cache):
        summary = manifest.parts[span.part]
        # Of a part of several files the manifest names the first; shuffled ones are of all.
        if summary.source.url in urls or summary.files > 1 or manifest.shuffled is not None:
            yield read_documents(cache, span)


def find_document(cache: ShardCache, source: str, row: int) -> Iterator[tuple[int, int, SourceRow]]:
    """Where a document lies in the split: first token, the token after its last, source and row.

    Args:
        cache: of the split.
        source: URL of the source file, or the end of it.
        row: of the document in it.

    Raises:
        UsageError: several files end in `source`.
    """
    known = set(_sources(cache))
    urls = sorted(url for url in known if url.endswith(f"/{source}"))
    if source in known:
        urls = [source]
    if len(urls) > 1:
        raise UsageError(f"{source} may be {urls[0]} or {urls[1]}: give more of its name.")
    for documents in parts_with(cache, set(urls)):
        own = [number for number, (url, _) in enumerate(documents.files) if url in urls]
        numbers, rows = documents.in_files
        for found in np.flatnonzero(np.isin(numbers, own) & (rows == row)).tolist():
            yield (
                int(documents.starts[found]),
                int(documents.ends[found]),
                documents.source_row(found),
            )


def _sources(cache: ShardCache) -> Iterator[str]:
    """The URLs of all source files."""
    manifest, _ = manifest_of(cache)
    spans = {span.part: span for span in part_spans(cache)}
    if manifest.shuffled is not None:
        yield from (url for url, _ in _shuffled(cache).files)
        return
    for part, summary in enumerate(manifest.parts):
        if summary.files == 1:
            yield summary.source.url
        elif part in spans:
            yield from (url for url, _ in read_documents(cache, spans[part]).files)
