"""The documents of one part in one split: where each comes from, and where it stands."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.format.index import TokenIndex
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.provenance import Place, PlacesOfPart, PlacesOfSources
from streaming_ext.format.reading import read_listed, record_of
from streaming_ext.format.shuffled import sources_of
from streaming_ext.reading.cache import ShardCache


@dataclass(frozen=True, kw_only=True, slots=True)
class PartDocuments:
    """All documents of a part, in the order of the split's stream.

    Attributes:
        places: where the rows of the part come from.
        sources: numbers of their sources, in a shuffled dataset: (documents,).
        rows: of the part, or of these sources: (documents,).
        ends: the token behind each, counted from the part's first: (documents,).
        origin: the part's first token in the split's stream.
    """

    origins: PlacesOfPart | PlacesOfSources
    sources: Ints
    rows: Ints
    ends: Ints
    origin: int

    def place(self, document: int) -> Place:
        """Where a document comes from."""
        return self.origins.of(int(self.rows[document]), int(self.sources[document]))


def documents_between(cache: ShardCache, begin: int, end: int) -> Iterator[PartDocuments]:
    """The parts that hold any of the tokens [begin, end) of a split, in order.

    Raises:
        UsageError: the dataset does not know its documents.
        CorruptDatasetError: a record or table of documents is missing or damaged.
    """
    index = cache.index
    manifest_of_documents(cache)
    starts, parts = index.token_starts, parts_of_shards(index)
    first = int(np.searchsorted(starts, begin, side="right")) - 1
    last = int(np.searchsorted(starts, end - 1, side="right")) - 1
    for part in dict.fromkeys(parts[first : last + 1].tolist()):
        yield read_documents(cache, part)


def manifest_of_documents(cache: ShardCache) -> Manifest:
    """The manifest of a dataset that knows its documents.

    Raises:
        UsageError: it does not.
    """
    if cache.index.manifest is None:
        raise UsageError(f"{cache.source.url} does not say which documents it holds.")
    return cache.index.manifest


def parts_of_shards(index: TokenIndex) -> Ints:
    """Number of the part that each shard is of: (shards,)."""
    return np.array([int(name.partition("/")[0]) for name in index.raw_names], np.int64)


def parts_with(cache: ShardCache, urls: set[str]) -> Iterator[int]:
    """Parts that may hold documents of some source files."""
    there = set(parts_of_shards(cache.index).tolist())
    manifest = manifest_of_documents(cache)
    for summary in manifest.parts:
        # Of a part of several files the manifest names the first; shuffled ones are of all.
        any_file = summary.files > 1 or manifest.shuffled is not None
        if summary.part in there and (summary.source.url in urls or any_file):
            yield summary.part


@lru_cache(maxsize=32)  # some hundred megabytes at the most; caches are never equal
def read_documents(cache: ShardCache, part: int) -> PartDocuments:
    """The documents of a part; those of the last parts that were asked for are kept.

    Raises:
        UsageError: the dataset does not know its documents.
        CorruptDatasetError: a record or table of documents is missing or damaged.
    """
    import pyarrow.parquet as pq

    index, manifest = cache.index, manifest_of_documents(cache)
    summary = next((each for each in manifest.parts if each.part == part), None)
    if summary is None:
        raise CorruptDatasetError(f"{cache.source.url}: the manifest does not know part {part}.")
    record = record_of(read_listed(cache.source, summary.record), where=summary.record.path)
    table = pq.read_table(BytesIO(read_listed(cache.source, record.documents)))
    chosen = np.asarray(table["split"]) == index.split
    lengths = np.asarray(table["tokens"])[chosen].astype(np.int64) + 1  # and its end-of-text id
    sources = np.zeros(len(lengths), np.int64)
    origins: PlacesOfPart | PlacesOfSources = PlacesOfPart(record, manifest)
    if manifest.shuffled is not None:
        sources = np.asarray(table["source"])[chosen].astype(np.int64)
        origins = PlacesOfSources(sources_of(read_listed(cache.source, manifest.shuffled.sources)))
    return PartDocuments(
        origins=origins,
        sources=sources,
        rows=np.asarray(table["row"])[chosen].astype(np.int64),
        ends=np.cumsum(lengths),
        origin=int(index.token_starts[np.argmax(parts_of_shards(index) == part)]),
    )


def find_document(cache: ShardCache, source: str, row: int) -> Iterator[tuple[int, int, Place]]:
    """Where a document stands in the split: its first token, the one behind it, its place.

    Args:
        cache: of the split.
        source: URL of the source file, or the end of it.
        row: of the document in it.

    Raises:
        UsageError: the end of a URL stands for several files.
    """
    urls = sorted({url for url in _sources(cache) if url == source or url.endswith(f"/{source}")})
    if source in urls:
        urls = [source]
    if len(urls) > 1:
        raise UsageError(f"{source} may be {urls[0]} or {urls[1]}: give more of its name.")
    for part in parts_with(cache, set(urls)):
        documents = read_documents(cache, part)
        for url, from_byte in documents.origins.files():
            if url in urls:
                wanted = {(url, from_byte): np.array([row])}
                chosen = documents.origins.among(documents.rows, documents.sources, wanted)
                for number in np.flatnonzero(chosen):
                    begin = int(documents.ends[number - 1]) if number else 0
                    yield (
                        documents.origin + begin,
                        documents.origin + int(documents.ends[number]),
                        Place(url, row, from_byte),
                    )


def _sources(cache: ShardCache) -> Iterator[str]:
    """The URLs of all source files."""
    manifest = manifest_of_documents(cache)
    if manifest.shuffled is not None:
        table = read_listed(cache.source, manifest.shuffled.sources)
        yield from (source.identity.url for source in sources_of(table))
        return
    for summary in manifest.parts:
        if summary.files == 1:
            yield summary.source.url
        else:
            yield from (url for url, _ in read_documents(cache, summary.part).origins.files())
