"""The domains of all streams: of each token of rows, and of all that training received."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.batches.token_source import Spans
from streaming_ext.domains.domain_map import PADDING, VERSION, DomainMap, write_map
from streaming_ext.domains.labels import require_possible, runs_of
from streaming_ext.shards.cache import ShardCache
from streaming_ext.shards.made_once import made_once

Codes = npt.NDArray[np.int32]


class TokenDomains:
    """Looks up the domains of tokens.

    Attributes:
        by: what makes a domain.
        names: of all domains, by their numbers.
    """

    def __init__(self, maps: Sequence[DomainMap], *, by: str) -> None:
        """Number the domains of all streams together.

        Args:
            maps: one a stream.
            by: what makes a domain.
        """
        self.by = by
        self.names = tuple(sorted({name for each in maps for name in each.names}))
        numbers = {name: number for number, name in enumerate(self.names)}
        self._maps = tuple(maps)
        # Of each stream: the numbers of its domains, and last what stands for padding.
        self._numbers = [
            np.array([*(numbers[name] for name in each.names), PADDING], np.int32) for each in maps
        ]

    def of_tokens(self, spans: Spans, *, length: int, real: Flags) -> Codes:
        """The domain of each token of some rows: (rows, length).

        Args:
            spans: that the rows are made of.
            length: of a row.
            real: False for rows that only fill up a batch: (rows,).
        """
        owners, domains, tokens = self._runs(spans)
        # Padding behind a span is a run too.
        gaps = spans.rooms - spans.lengths
        padded = np.flatnonzero(gaps)
        if padded.size:
            at = np.searchsorted(owners, padded, side="right")
            domains = np.insert(domains, at, np.int32(PADDING))
            tokens = np.insert(tokens, at, gaps[padded])
        found: Codes = np.repeat(domains, tokens).reshape(len(real), length)
        if not real.all():
            found[~real] = PADDING
        return found

    def count(self, spans: Spans) -> Ints:
        """Tokens of each domain in each stream, padding left out: (streams, domains)."""
        owners, domains, tokens = self._runs(spans)
        shape = len(self._maps), len(self.names) + 1  # the last for padding
        place = spans.streams[spans.rows[owners]] * shape[1] + domains % shape[1]
        counts = np.bincount(place, tokens, minlength=shape[0] * shape[1])
        result: Ints = counts.astype(np.int64).reshape(shape)[:, :-1]
        return result

    def _runs(self, spans: Spans) -> tuple[Ints, Codes, Ints]:
        """Span, domain and tokens of each run of tokens of one domain, in their order."""
        present = np.unique(spans.streams).tolist()
        if len(present) == 1:
            (stream,) = present
            found, codes, tokens = self._maps[stream].look_up(spans.starts, spans.lengths)
            return found, self._numbers[stream][codes], tokens
        pieces = []
        for stream in present:
            own = np.flatnonzero(spans.streams[spans.rows] == stream)
            found, codes, tokens = self._maps[stream].look_up(spans.starts[own], spans.lengths[own])
            pieces.append((own[found], self._numbers[stream][codes], tokens))
        owner, domains, tokens = (np.concatenate(column) for column in zip(*pieces, strict=True))
        order = np.argsort(owner, kind="stable")
        return owner[order], domains[order], tokens[order]


def open_domains(
    caches: Sequence[ShardCache], by: str | None, *, maps: bool = True
) -> TokenDomains | None:
    """The domains of some streams; their maps are made where they are not there yet.

    Args:
        caches: of the streams.
        by: `folder` or `column:NAME`; None where streams are domains.
        maps: whether their maps of domains are mapped into memory.

    Raises:
        UsageError: a dataset does not tell.
        CorruptDatasetError: what it says of its documents is missing or damaged.
        StorageError: a map cannot be kept.
    """
    if by is None:
        return None
    require_possible(by)
    return TokenDomains([_open_map(cache, by, maps) for cache in caches], by=by)


def _open_map(cache: ShardCache, by: str, maps: bool) -> DomainMap:
    index = cache.index
    name = f"{index.split or 'shards'}-{index.index_hash[:16]}.domains-{VERSION}-"
    name += f"{xxhash.xxh3_64_hexdigest(by.encode())}.map"
    names: list[str] = []
    return made_once(
        cache.beside / name,
        what="The map of domains",
        opened=lambda path: DomainMap(path, maps=maps),
        make=lambda file: write_map(
            file, runs_of(cache, by, names), names, tokens=int(index.token_starts[-1])
        ),
    )
