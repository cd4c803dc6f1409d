"""The domain of each document of a split: what it is called, and where it begins."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from streaming_ext.base.arrays import Ints
from streaming_ext.dataset.layout import Split
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.places import PlacesOfPart, PlacesOfSources
from streaming_ext.dataset.provenance import DocumentRows, read_provenance
from streaming_ext.dataset.reading import listed_record, read_listed
from streaming_ext.dataset.shuffled.source_table import sources_of
from streaming_ext.domains.domain_map import PADDING, Codes
from streaming_ext.errors import CorruptDatasetError, UsageError
from streaming_ext.packing.documents import each_part
from streaming_ext.shards.cache import ShardCache

FOLDER: Final = "folder"
COLUMN: Final = "column:"
NOTHING: Final = "(nothing)"  # of a document that has no value in the column
MOST: Final = 1 << 16  # domains; a count of each stands in the state


@dataclass(frozen=True, kw_only=True, slots=True)
class _Labels:
    """Documents of a part: what each is called, by number, and its tokens: (documents,)."""

    names: Sequence[str]
    numbers: Ints
    lengths: Ints


def require_possible(by: str) -> None:
    """Refuse what is no way to tell domains.

    Raises:
        UsageError: it is none.
    """
    if by != FOLDER and not (by.startswith(COLUMN) and by != COLUMN):
        raise UsageError(
            f"`domain_by` must be {FOLDER!r} or {COLUMN + 'NAME'!r}, for a column that was kept by "
            f"--keep-columns; got {by!r}. Leave it out to count by streams."
        )


def runs_of(cache: ShardCache, by: str, names: list[str]) -> Iterator[tuple[Ints, Codes]]:
    """Where runs of documents of one domain begin in the split's stream, and which it is.

    Args:
        cache: of the split.
        by: see `require_possible`.
        names: filled with the names of domains, in the order in which they come.

    Raises:
        UsageError: the dataset does not tell, or there are too many domains.
        CorruptDatasetError: a record or table of documents is missing or damaged.
    """
    manifest = _manifest_with(cache, by)
    sources = None
    if manifest.shuffled is not None and by == FOLDER:
        sources = PlacesOfSources(sources_of(read_listed(cache.source, manifest.shuffled.sources)))

    def read(split: Split, part: int) -> _Labels:
        return _labels(cache, manifest, split, part, by=by, sources=sources)

    codes: dict[str, int] = {}
    for begin, end, found in each_part(cache, read):
        for name in found.names:
            codes.setdefault(name, len(codes))
        if len(codes) > MOST:
            raise UsageError(
                f"domain_by={by!r} of {cache.source.url} gives more than {MOST:,} domains: take "
                "a column of fewer values."
            )
        names += list(codes)[len(names) :]
        total = int(found.lengths.sum())
        if not 0 <= end - begin - total < cache.index.sample_tokens:
            raise CorruptDatasetError(
                f"{cache.source.url}: the documents of a part have {total} tokens, its shards "
                f"{end - begin}. Run `shardmill verify` on it."
            )
        own = np.array([codes[name] for name in found.names], np.int32)[found.numbers]
        starts = begin + np.cumsum(found.lengths) - found.lengths
        if total < end - begin:
            own, starts = np.append(own, np.int32(PADDING)), np.append(starts, begin + total)
        changes = np.flatnonzero(np.diff(own, prepend=own[:1] + 1))
        yield starts[changes], own[changes]


def _manifest_with(cache: ShardCache, by: str) -> Manifest:
    manifest = None if cache.of_text else cache.index.manifest
    if manifest is None:
        raise UsageError(
            f"domain_by= needs the lists of documents, which {cache.source.url} does not have. "
            "Make the dataset with `shardmill shard`, or leave domain_by out."
        )
    column, kept = by.removeprefix(COLUMN), manifest.spec.keep_columns
    if by != FOLDER and column not in kept:
        raise UsageError(
            f"{cache.source.url} did not keep the column {column!r}; it kept "
            f"{', '.join(kept) or 'none'}. Make it with --keep-columns {column}, or pass "
            f"domain_by={FOLDER!r}."
        )
    return manifest


def _labels(
    cache: ShardCache,
    manifest: Manifest,
    split: Split,
    part: int,
    *,
    by: str,
    sources: PlacesOfSources | None,
) -> _Labels:
    listed = manifest.parts[part].record
    where = f"{cache.source.url}/{listed.path}"
    record = listed_record(read_listed(cache.source, listed), manifest, part, where=where)
    places: PlacesOfPart | PlacesOfSources = sources or PlacesOfPart(record)
    folders: list[str] = []
    if by == FOLDER:
        folders = [url.rpartition("/")[0] for url, _ in places.files()]
        if len(set(folders)) == 1:  # no need to look at documents
            tokens = np.array([record.splits[split].tokens])
            return _Labels(names=folders[:1], numbers=np.zeros(1, np.int64), lengths=tokens)
    data = read_listed(cache.source, record.documents)
    names: dict[str, int] = {}
    numbers: list[Ints] = [np.empty(0, np.int64)]
    lengths: list[Ints] = [np.empty(0, np.int64)]
    try:
        for documents in read_provenance(data):
            chosen = documents.of(split)
            lengths.append(documents.tokens[chosen] + 1)
            if by == FOLDER:
                number = _numbers_of_files(places, documents)[chosen]
                found = folders
            else:
                column = documents.values[by.removeprefix(COLUMN)].filter(pa.array(chosen))
                number, found = _numbers_of_values(column)
            own = np.array([names.setdefault(name, len(names)) for name in found], np.int64)
            numbers.append(own[number])
    except (CorruptDatasetError, KeyError) as error:
        raise CorruptDatasetError(f"{cache.source.url}/{record.documents.path}: {error}") from error
    return _Labels(
        names=list(names), numbers=np.concatenate(numbers), lengths=np.concatenate(lengths)
    )


def _numbers_of_files(places: PlacesOfPart | PlacesOfSources, documents: DocumentRows) -> Ints:
    sources = documents.sources
    if sources is None:
        sources = np.zeros(len(documents.rows), np.int64)
    return places.numbered(documents.rows, sources)[0]


def _numbers_of_values(column: pa.Array) -> tuple[Ints, list[str]]:
    """The distinct values of a column as words, and which each row has: (rows,)."""
    encoded = column.dictionary_encode(null_encoding="encode")
    numbers: Ints = np.asarray(encoded.indices).astype(np.int64)
    return numbers, [_word(value) for value in encoded.dictionary.to_pylist()]


def _word(value: str | float | bool | None) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
