"""Domains of the tokens in rows, and counts of the tokens that training received per domain.

A domain is a folder of source files, or a value of a kept column. A mapped file in the cache holds
the ranges of a split's stream whose tokens are of one domain:

words      int64 (ranges,), the first token of each range and the number of its domain
directory  JSON: the names of the domains, the hash of the words
end        length of the directory, 8 bytes; its XXH3-128, 16 bytes

Counts are computed from the order, without other ranks: each call adds the tokens of the positions
since the last call. So they cost training nothing between calls.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from streaming_ext.base.arrays import Flags, Ints, ranges
from streaming_ext.base.errors import UsageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.provenance import ListedRows, SourceRows
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.state import Cursor
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.made_once import MappedWords, made_once, write_directory, write_words
from streaming_ext.reading.source import Spans, TokenSource
from streaming_ext.reading.token_reader import by_value
from streaming_ext.training.columns import Batch, ReadRows, RowColumn
from streaming_ext.training.features.documents import PartSpan, split_documents

VERSION: Final = 3
PADDING: Final = -1
_BITS: Final = 17  # of a word: a domain's number plus 1, or 0 for padding; the others hold a token
Codes = npt.NDArray[np.int32]


def write_map(file: BinaryIO, cache: ShardCache, by: str) -> None:
    """Write the map of a split; see `ranges_of`."""
    codes: dict[str, int] = {}
    found = ranges_of(cache, by, codes)
    digest = write_words(file, (starts << _BITS | numbers + 1 for starts, numbers in found))
    write_directory(file, {"version": VERSION, "names": list(codes), "xxh128": digest})


class DomainMap(MappedWords):
    """The domains of the tokens of one split.

    Attributes:
        names: the names of the domains, in the order of their codes.
    """

    version = VERSION

    def __init__(self, path: Path, *, verify: bool = True) -> None:
        """See `MappedWords`."""
        super().__init__(path, verify=verify)
        self.names = tuple(self.directory["names"])

    def look_up(self, starts: Ints, lengths: Ints) -> tuple[Ints, Ints, Ints]:
        """Find the ranges in some spans of the stream.

            domain 0 begins at token 0, domain 1 at token 10
            spans [4, 8) and [8, 12): ranges in spans 0, 1, 1, of domains 0, 0, 1, of 4, 2, 2 tokens

        Args:
            starts: the first token of each span: (spans,).
            lengths: the tokens of each span: (spans,).

        Returns:
            the span, the domain and the tokens of each range within a span: (ranges,) each.
        """
        first = np.searchsorted(self.words, starts + 1 << _BITS) - 1
        counts = np.searchsorted(self.words, starts + lengths << _BITS) - first
        span = np.repeat(np.arange(len(starts)), counts)
        words = self.words[ranges(first, counts)]
        begins = np.maximum(words >> _BITS, starts[span])
        ends = np.append(begins[1:], 0)
        ends[np.cumsum(counts) - 1] = starts + lengths
        return span, (words & (1 << _BITS) - 1) - 1, ends - begins


FOLDER: Final = "folder"
COLUMN: Final = "column:"
NOTHING: Final = "(nothing)"  # the domain of documents without a value in the column
MOST: Final = 1 << 16  # domains, since a state holds a count of each


def ranges_of(cache: ShardCache, by: str, codes: dict[str, int]) -> Iterator[tuple[Ints, Ints]]:
    """Yield the first tokens and the domain numbers of ranges of documents of one domain.

    Args:
        cache: the cache of the split.
        by: see `open_domains`.
        codes: the dictionary to fill with each domain's number by its name, in stream order.

    Raises:
        UsageError: the dataset does not have the column, or there are too many domains.
        CorruptDatasetError: a record or table of documents is missing or damaged.
    """
    listed = split_documents(cache)
    column, kept = by.removeprefix(COLUMN), listed.manifest.columns
    if by != FOLDER and column not in kept:
        raise UsageError(
            f"{cache.source.url} did not keep the column {column!r}; it kept "
            f"{', '.join(kept) or 'none'}. Make it with --keep-columns {column}, or pass "
            f"domain_by={FOLDER!r}."
        )

    def read(span: PartSpan) -> tuple[Ints, Ints, list[str]]:
        """Return tokens and domain numbers of a part's documents, and the names of the domains."""
        if by != FOLDER:
            words: dict[str, int] = {}
            documents = listed.read(span, label=partial(_numbers_of_values, column, words))
            return documents.lengths, documents.labels, list(words)
        record = listed.record(span.part)
        folders = [url.rpartition("/")[0] for url, _ in listed.origins(record).files]
        if len(set(folders)) == 1:  # no need to read the table of documents
            return (
                np.array([record.splits[listed.split].tokens]),
                np.zeros(1, np.int64),
                folders[:1],
            )
        documents = listed.read(span)
        return documents.lengths, documents.in_files[0], folders

    for span, part in zip(listed.spans, mapped_ahead(read, listed.spans), strict=True):
        lengths, numbers, found = part
        for name in found:
            codes.setdefault(name, len(codes))
        if len(codes) > MOST:
            raise UsageError(
                f"domain_by={by!r} of {cache.source.url} gives more than {MOST:,} domains: take "
                "a column of fewer values."
            )
        own = np.array([codes[name] for name in found], np.int64)[numbers]
        ends = span.begin + np.cumsum(lengths)
        starts = ends - lengths
        if ends[-1] < span.end:
            own, starts = np.append(own, PADDING), np.append(starts, ends[-1])
        changes = np.flatnonzero(np.diff(own, prepend=own[:1] + 1))
        yield starts[changes], own[changes]


def _numbers_of_values(
    column: str, words: dict[str, int], documents: ListedRows, chosen: Flags, _: SourceRows
) -> Ints:
    """Number the chosen documents by their values in a column; add new values to `words`."""
    values = documents.values[column].filter(pa.array(chosen))
    encoded = values.dictionary_encode(null_encoding="encode")
    found = [
        words.setdefault(name_of_value(value), len(words))
        for value in encoded.dictionary.to_pylist()
    ]
    numbers: Ints = np.array(found, np.int64)[np.asarray(encoded.indices)]
    return numbers


def name_of_value(value: str | float | bool | None) -> str:
    """Return the name of the domain of a value in a column."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


class TokenDomains(RowColumn):
    """The domain of each token, -1 in padding: (rows, length).

    Attributes:
        by: the property of documents that makes a domain.
        domains: all domains, in the order of their numbers.
    """

    name, per_token, token_bytes = "domain_ids", True, 4

    def __init__(self, maps: Sequence[DomainMap], *, by: str) -> None:
        """Number the domains of all streams together.

        Args:
            maps: the map of each stream.
            by: the property of documents that makes a domain.
        """
        self.by = by
        self.domains = tuple(sorted({name for each in maps for name in each.names}))
        numbers = {name: number for number, name in enumerate(self.domains)}
        self._maps = tuple(maps)
        # For each stream, the numbers of its domains, then the number of padding.
        self._numbers = [
            np.array([*(numbers[name] for name in each.names), PADDING], np.int32) for each in maps
        ]

    def identity(self) -> dict[str, Any]:
        """Return the property that makes a domain, by which a state counts."""
        return {"domain_by": self.by}

    def add(self, batch: Batch, read: ReadRows) -> None:
        """See `RowColumn`."""
        spans = read.located.spans(read.rows)
        owners, domains, tokens = self._ranges(spans)
        gaps = spans.rooms - spans.lengths
        padded = np.flatnonzero(gaps)  # padding after a span is a range too
        if padded.size:
            at = np.searchsorted(owners, padded, side="right")
            domains = np.insert(domains, at, np.int32(PADDING))
            tokens = np.insert(tokens, at, gaps[padded])
        found: Codes = np.repeat(domains, tokens).reshape(read.tokens.shape)
        found[~read.real] = PADDING
        batch[self.name] = found

    def count(self, spans: Spans) -> Ints:
        """Count the tokens of each domain in each stream, without padding: (streams, domains)."""
        owners, domains, tokens = self._ranges(spans)
        shape = len(self._maps), len(self.domains) + 1  # the last one is padding
        cell = spans.streams[spans.rows[owners]] * shape[1] + domains % shape[1]
        counts = np.bincount(cell, tokens, minlength=shape[0] * shape[1])
        result: Ints = counts.astype(np.int64).reshape(shape)[:, :-1]
        return result

    def _ranges(self, spans: Spans) -> tuple[Ints, Codes, Ints]:
        """Return span, domain and tokens of each range of one domain, in order of the spans."""
        columns = []
        for stream, own in by_value(spans.streams[spans.rows]):
            found, codes, tokens = self._maps[stream].look_up(spans.starts[own], spans.lengths[own])
            columns.append((own[found], self._numbers[stream][codes], tokens))
        owners, domains, tokens = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(owners, kind="stable")
        return owners[order], domains[order], tokens[order]


def open_domains(caches: Sequence[ShardCache], by: str) -> TokenDomains:
    """Open the domains of some streams; maps that are missing are made.

    Args:
        caches: the caches of the streams.
        by: `folder` or `column:NAME`.

    Raises:
        UsageError: `by` is neither, a dataset lists no documents, or it did not keep the column.
        CorruptDatasetError: a record or table of documents is missing or damaged.
        StorageError: a map cannot be kept.
    """
    if by != FOLDER and not (by.startswith(COLUMN) and by != COLUMN):
        raise UsageError(
            f"`domain_by` must be {FOLDER!r} or {COLUMN + 'NAME'!r}, for a column that was kept by "
            f"--keep-columns; got {by!r}. Leave it out to count by streams."
        )

    def open_map(cache: ShardCache) -> DomainMap:
        digest = xxhash.xxh3_64_hexdigest(f"{split_documents(cache).fingerprint} {by}".encode())
        return made_once(
            cache.beside / f"{cache.name}.domains-{VERSION}-{digest}.map",
            opened=DomainMap,
            make=partial(write_map, cache=cache, by=by),
        )

    return TokenDomains([open_map(cache) for cache in caches], by=by)


STATE_KEY: Final = "domains"  # of a state
_AT_ONCE: Final = 1 << 15  # positions


class DomainCounts:
    """Counts of the tokens of each domain and stream in training, over all ranks and resumes."""

    def __init__(
        self, plan: EpochPlan, source: TokenSource, domains: TokenDomains, cursor: Cursor
    ) -> None:
        """Start with counts of zero.

        Args:
            plan: the plan of any rank.
            source: the source of the tokens.
            domains: the domains of the streams.
            cursor: the position at which counting begins.
        """
        self._plan, self._source, self._domains = plan, source, domains
        self._counts: Ints = np.zeros((len(plan.sizes), len(domains.domains)), np.int64)
        self._at = cursor

    def up_to(self, cursor: Cursor) -> list[dict[str, int]]:
        """Count the tokens of each stream up to a cursor, by the names of its domains."""
        while self._at.epoch < cursor.epoch:
            self._count_to(self._plan.epoch_size)
            self._at = self._plan.next_epoch(self._at)
        self._count_to(cursor.position)
        names = self._domains.domains
        return [
            {names[number]: int(counts[number]) for number in np.flatnonzero(counts).tolist()}
            for counts in self._counts
        ]

    def _count_to(self, position: int) -> None:
        """Count up to a position of the epoch, or back to it if the epoch was restarted."""
        begin, end = sorted((self._at.position, position))
        sign = 1 if end == position else -1
        for first in range(begin, end, _AT_ONCE):
            positions = np.arange(first, min(first + _AT_ONCE, end))
            streams, sequences = self._plan.at_positions(self._at, positions)
            if sequences.size:
                rows = self._source.locate(streams, sequences, self._plan.length)
                self._counts += sign * self._domains.count(rows.spans(slice(0, len(sequences))))
        self._at = replace(self._at, position=position)

    def state(self, cursor: Cursor, fingerprints: Sequence[str]) -> dict[str, Any]:
        """Return the counts at a cursor, as a state holds them.

        Args:
            cursor: the position of the state.
            fingerprints: the fingerprints of the streams.
        """
        streams = [
            {"fingerprint": fingerprint, "tokens": tokens}
            for fingerprint, tokens in zip(fingerprints, self.up_to(cursor), strict=True)
        ]
        return {STATE_KEY: {"by": self._domains.by, "streams": streams}}

    def resume(
        self, state: Mapping[str, Any], cursor: Cursor, fingerprints: Sequence[Sequence[str]]
    ) -> None:
        """Take the counts of a state; start from zero if it counted other domains, or none.

        Args:
            state: the state as it was saved.
            cursor: the position of the state.
            fingerprints: the fingerprints of each stream, its own before its older generations'.
        """
        self._counts, self._at = np.zeros_like(self._counts), cursor
        saved = state.get(STATE_KEY)
        if saved is None or saved["by"] != self._domains.by:
            return
        numbers = {name: number for number, name in enumerate(self._domains.domains)}
        of_stream: dict[str, list[Mapping[str, int]]] = {}  # one dataset may be two streams
        for each in saved["streams"]:
            of_stream.setdefault(each["fingerprint"], []).append(each["tokens"])
        for stream, names in enumerate(fingerprints):
            found = next((of_stream[name] for name in names if of_stream.get(name)), None)
            for domain, tokens in found.pop(0).items() if found else ():
                self._counts[stream, numbers[domain]] = tokens
