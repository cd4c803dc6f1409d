"""The documents of a unit of text, read and tokenized once more: where each comes from."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.places import Place
from streaming_ext.errors import CorruptDatasetError
from streaming_ext.from_text.text_cache import TextCache
from streaming_ext.from_text.text_index import PADDING
from streaming_ext.from_text.units import Unit
from streaming_ext.shards.cache import ShardCache


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitDocuments:
    """All documents of a unit in one split, in order.

    Attributes:
        unit: that they are of.
        sources: number of the piece that each is of: (documents,).
        rows: in their files: (documents,).
        ends: the token behind each, counted from the unit's first: (documents,).
        origin: the unit's first token in the split's stream.
    """

    unit: Unit
    sources: Ints
    rows: Ints
    ends: Ints
    origin: int

    def place(self, document: int) -> Place:
        """Where a document comes from."""
        url = self.unit.pieces[int(self.sources[document])].source.url
        return Place(url, int(self.rows[document]))


@lru_cache(maxsize=32)  # a unit is small; caches are never equal
def _read(cache: ShardCache, shard: int) -> UnitDocuments:
    text = _text(cache)
    index = text.index
    number = int(index.unit_of_shard[shard])
    pieces, rows, lengths = ([np.empty(0, np.int64)] for _ in range(3))
    for some in text.reader.documents(index.units[number]):
        chosen = some.of_split(index.split)
        pieces.append(some.pieces[chosen])
        rows.append(some.rows[chosen])
        lengths.append(some.lengths[chosen])
    return UnitDocuments(
        unit=index.units[number],
        sources=np.concatenate(pieces),
        rows=np.concatenate(rows) + index.rows_before[number],
        ends=np.cumsum(np.concatenate(lengths)),
        origin=int(index.token_starts[shard]),
    )


def units_between(cache: ShardCache, begin: int, end: int) -> Iterator[UnitDocuments]:
    """The units that hold any of the tokens [begin, end) of the split; padding has no documents.

    Raises:
        SourceError: a file cannot be read any more, or changed.
    """
    index = _text(cache).index
    starts = index.token_starts
    first, last = np.searchsorted(starts, [begin, end - 1], side="right") - 1
    for shard in range(int(first), int(last) + 1):
        if index.unit_of_shard[shard] != PADDING:
            yield _read(cache, shard)


def files_of(cache: ShardCache) -> Iterator[str]:
    """The URLs of the files, one a unit or more."""
    for unit in _text(cache).index.units:
        yield from (piece.source.url for piece in unit.pieces)


def _text(cache: ShardCache) -> TextCache:
    if not isinstance(cache, TextCache):
        raise TypeError(f"{cache.source.url} is no text.")
    return cache


def units_with(cache: ShardCache, url: str, row: int) -> Iterator[UnitDocuments]:
    """The units that may hold a row of a file: one, or a few where some have no document."""
    index = _text(cache).index
    for shard, number in enumerate(index.unit_of_shard.tolist()):
        if number == PADDING or url not in {p.source.url for p in index.units[number].pieces}:
            continue
        if index.rows_before[number] <= row:
            following = number + 1
            goes_on = following < len(index.units) and index.rows_before[following] > 0
            if not (goes_on and index.rows_before[following] <= row):
                yield _read(cache, shard)


def count_in(cache: ShardCache) -> int:
    """Documents of the split."""
    return _text(cache).index.documents


def ends_in(cache: ShardCache) -> Iterator[tuple[int, Ints]]:
    """First token of each unit in the split's stream, and its documents' ends from there on.

    Out of the tokens, of which an end-of-text id ends each document; made where they are missing.
    """
    index = _text(cache).index
    for shard in np.flatnonzero(index.unit_of_shard != PADDING).tolist():
        tokens = _tokens_of(_text(cache), shard)
        ends = np.flatnonzero(tokens == index.spec.tokenizer.eot_id) + 1
        yield int(index.token_starts[shard]), ends


def _tokens_of(cache: TextCache, shard: int) -> npt.NDArray[Any]:
    """The tokens of a unit, as they were counted.

    Raises:
        CorruptDatasetError: they are not, made anew either.
    """
    index = cache.index
    for attempt in range(2):
        cache.use(shard)
        try:
            cache.fetch(shard)
            with contextlib.suppress(FileNotFoundError):  # another process made room
                data = cache.path(shard).read_bytes()
                if content_hash(data) == index.raw_hashes[shard]:
                    return np.frombuffer(data, index.dtype)
                if not attempt:
                    cache.discard(shard)
        finally:
            cache.unuse(shard)
    raise CorruptDatasetError(f"{cache.label(shard)}: the tokens in the cache do not stay whole.")
