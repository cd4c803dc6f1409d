"""The documents of a split in the order of its token stream, with location and source."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.layout import SPLITS
from streaming_ext.format.provenance import (
    ListedRows,
    SourceRow,
    SourceRows,
    added_values,
    read_provenance,
)
from streaming_ext.format.reading import listed_record, read_listed
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import content_hash
from streaming_ext.format.shuffled import sources_of
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.source import DocumentRanges


class PartSpan(NamedTuple):
    """A part, its first token in the split's stream, and the token after its last one."""

    part: int
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class LocatedDocuments:
    """All documents of a part in one split, in the order of the stream.

    Attributes:
        origins: the source files of the part.
        begin: the first token of the part in the split's stream.
        lengths: tokens of each document, including its end-of-text id: (documents,).
        rows: rows of the part, or of the sources in a shuffled dataset: (documents,).
        sources: numbers of the sources in a shuffled dataset: (documents,).
        labels: the labels that `SplitDocuments.read` gave: (documents,).
    """

    origins: SourceRows
    begin: int
    lengths: Ints
    rows: Ints
    sources: Ints
    labels: Ints

    @cached_property
    def ends(self) -> Ints:
        """The token after each document: (documents,)."""
        return self.begin + np.cumsum(self.lengths)

    @cached_property
    def starts(self) -> Ints:
        """The first token of each document: (documents,)."""
        return self.ends - self.lengths

    @property
    def in_files(self) -> tuple[Ints, Ints]:
        """The number of each document's file, and its row in the file: (documents,) each."""
        return self.origins.numbered(self.rows, self.sources)

    def source_row(self, document: int) -> SourceRow:
        """Return the source file and row of a document."""
        return self.origins.of(int(self.rows[document]), int(self.sources[document]))


class SplitDocuments:
    """The documents of a split, part by part.

    All methods raise `CorruptDatasetError` if a record or table of documents is missing or damaged,
    or contradicts the shards.

    Attributes:
        manifest: the manifest of the dataset.
        split: the name of the split.
    """

    def __init__(self, cache: ShardCache) -> None:
        """Prepare to read, without reading anything.

        Args:
            cache: the cache of the split.

        Raises:
            UsageError: the dataset does not list its documents.
        """
        manifest = cache.index.manifest
        if manifest is None:
            raise UsageError(
                f"{cache.source.url} has no lists of documents, which packing, exclude, where, "
                "domain_by and traces need. Make it with `shardmill shard`, or leave them out."
            )
        self.manifest = manifest
        self.split = next(split for split in SPLITS if split == cache.index.split)
        self._index, self._source = cache.index, cache.source

    @cached_property
    def fingerprint(self) -> str:
        """The hash of all lists of documents, and of the columns added to them."""
        added = (file for each in self.manifest.added for file in each.files)
        files = [*(part.record for part in self.manifest.parts), *added]
        return content_hash("\n".join(file.xxh128 for file in files).encode())

    @cached_property
    def spans(self) -> list[PartSpan]:
        """The parts that have shards in the split, in order."""
        index = self._index
        numbers = np.array([int(name.partition("/")[0]) for name in index.raw_names], np.int64)
        parts, first = np.unique(numbers, return_index=True)
        begins = index.token_starts[np.append(first, len(numbers))].tolist()
        return [*map(PartSpan, parts.tolist(), begins, begins[1:])]

    def record(self, part: int) -> PartRecord:
        """Read the record of a part."""
        listed = self.manifest.parts[part].record
        where = f"{self._source.url}/{listed.path}"
        return listed_record(read_listed(self._source, listed), self.manifest, part, where=where)

    def origins(self, record: PartRecord) -> SourceRows:
        """Return the source files of a part's documents."""
        if self.manifest.shuffled is None:
            return SourceRows.of_part(record, self.manifest)
        return self._all_sources

    @cached_property
    def _all_sources(self) -> SourceRows:
        assert self.manifest.shuffled is not None  # noqa: S101 - the caller has checked
        table = read_listed(self._source, self.manifest.shuffled.sources)
        return SourceRows.of_sources(sources_of(table))

    def read(
        self,
        span: PartSpan,
        *,
        label: Callable[[ListedRows, Flags, SourceRows], Ints] | None = None,
    ) -> LocatedDocuments:
        """Read the documents of a part.

        Args:
            span: the part.
            label: the function that numbers the documents of the split in a batch of the table,
                given the batch, flags for these documents, and the origins of the part's documents.
        """
        record, url = self.record(span.part), self._source.url
        read = partial(read_listed, self._source)
        added = {} if label is None else added_values(self.manifest, record, read)
        origins = self.origins(record)
        arrays = [np.empty((4, 0), np.int64)]  # lengths, rows, sources and labels of each batch
        try:
            for some in read_provenance(read(record.documents), added):
                chosen = some.of(self.split)
                rows = some.rows[chosen]
                sources = np.zeros_like(rows) if some.sources is None else some.sources[chosen]
                labels = np.zeros_like(rows) if label is None else label(some, chosen, origins)
                arrays.append(np.stack([some.tokens[chosen] + 1, rows, sources, labels]))
        except CorruptDatasetError as error:
            raise CorruptDatasetError(f"{url}/{record.documents.path}: {error}") from error
        lengths, rows, sources, labels = np.concatenate(arrays, axis=1)
        total, stored = int(lengths.sum()), span.end - span.begin
        if not 0 <= stored - total < self._index.sample_tokens:
            raise CorruptDatasetError(
                f"{url}: the documents of part {span.part} have {total} tokens, its shards "
                f"{stored}. Run `shardmill verify` on it."
            )
        return LocatedDocuments(
            origins=origins,
            begin=span.begin,
            lengths=lengths,
            rows=rows,
            sources=sources,
            labels=labels,
        )

    def all(self) -> Iterator[DocumentRanges]:
        """Yield all documents, part by part."""
        for part in mapped_ahead(self.read, self.spans):
            yield DocumentRanges(part.starts, part.lengths)

    def between(self, begin: int, end: int) -> Iterator[LocatedDocuments]:
        """Yield the parts that hold any of the tokens [begin, end)."""
        for span in self.spans:
            if span.begin < end and span.end > begin:
                yield _kept(self, span)

    def parts_with(self, urls: set[str]) -> Iterator[LocatedDocuments]:
        """Yield the parts that may hold documents of some source files."""
        for span in self.spans:
            summary = self.manifest.parts[span.part]
            # The manifest names only the first file of a part; a shuffled part is of all files.
            if (
                summary.source.url in urls
                or summary.files > 1
                or self.manifest.shuffled is not None
            ):
                yield _kept(self, span)

    def find(self, source: str, row: int) -> Iterator[tuple[int, int, SourceRow]]:
        """Yield the first token of a document, the token after its last one, and its source.

        Args:
            source: the URL of the source file, or the end of the URL.
            row: the row of the document in the file.

        Raises:
            UsageError: several files end in `source`.
        """
        known = set(self._urls())
        urls = sorted(url for url in known if url.endswith(f"/{source}"))
        if source in known:
            urls = [source]
        if len(urls) > 1:
            raise UsageError(f"{source} may be {urls[0]} or {urls[1]}: give more of its name.")
        for part in self.parts_with(set(urls)):
            own = [number for number, (url, _) in enumerate(part.origins.files) if url in urls]
            numbers, rows = part.in_files
            for found in np.flatnonzero(np.isin(numbers, own) & (rows == row)).tolist():
                yield int(part.starts[found]), int(part.ends[found]), part.source_row(found)

    def _urls(self) -> Iterator[str]:
        """Yield the URLs of all source files."""
        if self.manifest.shuffled is not None:
            yield from (url for url, _ in self._all_sources.files)
            return
        spans = {span.part: span for span in self.spans}
        for part, summary in enumerate(self.manifest.parts):
            if summary.files == 1:
                yield summary.source.url
            elif part in spans:
                yield from (url for url, _ in _kept(self, spans[part]).origins.files)


split_documents = lru_cache(maxsize=16)(SplitDocuments)


@lru_cache(maxsize=32)  # a few hundred megabytes at most
def _kept(documents: SplitDocuments, span: PartSpan) -> LocatedDocuments:
    return documents.read(span)
