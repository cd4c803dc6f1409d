"""The domains of all streams: of each token of rows, and of all that training received.

The counts come from the order, without other ranks: a call adds the tokens of the positions since
the last call. So training itself spends nothing on them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.order.epoch_plan import EpochPlan
from streaming_ext.order.state import Cursor
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.domain_map import (
    PADDING,
    VERSION,
    DomainMap,
    ranges_of,
    require_possible,
    write_map,
)
from streaming_ext.reading.made_once import made_once
from streaming_ext.reading.rows import Spans, TokenSource
from streaming_ext.reading.token_reader import by_value

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
        owners, domains, tokens = self._ranges(spans)
        gaps = spans.rooms - spans.lengths
        padded = np.flatnonzero(gaps)  # padding behind a span is a range too
        at = np.searchsorted(owners, padded, side="right")
        domains = np.insert(domains, at, np.int32(PADDING))
        tokens = np.insert(tokens, at, gaps[padded])
        found: Codes = np.repeat(domains, tokens).reshape(len(real), length)
        found[~real] = PADDING
        return found

    def count(self, spans: Spans) -> Ints:
        """Tokens of each domain in each stream, padding left out: (streams, domains)."""
        owners, domains, tokens = self._ranges(spans)
        shape = len(self._maps), len(self.names) + 1  # the last for padding
        cell = spans.streams[spans.rows[owners]] * shape[1] + domains % shape[1]
        counts = np.bincount(cell, tokens, minlength=shape[0] * shape[1])
        result: Ints = counts.astype(np.int64).reshape(shape)[:, :-1]
        return result

    def _ranges(self, spans: Spans) -> tuple[Ints, Codes, Ints]:
        """Span, domain and tokens of each range of tokens of one domain, in their order."""
        columns = []
        for stream, own in by_value(spans.streams[spans.rows]):
            found, codes, tokens = self._maps[stream].look_up(spans.starts[own], spans.lengths[own])
            columns.append((own[found], self._numbers[stream][codes], tokens))
        owners, domains, tokens = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(owners, kind="stable")
        return owners[order], domains[order], tokens[order]


def open_domains(caches: Sequence[ShardCache], by: str | None) -> TokenDomains | None:
    """The domains of some streams, whose maps are made if they are missing.

    Args:
        caches: of the streams.
        by: `folder` or `column:NAME`; None where streams are domains.

    Raises:
        UsageError: a dataset lists no documents, or did not keep the column.
        CorruptDatasetError: a record or table of documents is missing or damaged.
        StorageError: a map cannot be kept.
    """
    if by is None:
        return None
    require_possible(by)
    digest = xxhash.xxh3_64_hexdigest(by.encode())

    def open_map(cache: ShardCache) -> DomainMap:
        names: list[str] = []
        tokens = int(cache.index.token_starts[-1])
        return made_once(
            cache.beside / f"{cache.name}.domains-{VERSION}-{digest}.map",
            what="The map of domains",
            opened=DomainMap,
            make=lambda file: write_map(file, ranges_of(cache, by, names), names, tokens=tokens),
        )

    return TokenDomains([open_map(cache) for cache in caches], by=by)


STATE_KEY: Final = "domains"  # of a state
_AT_ONCE: Final = 1 << 15  # positions


class DomainCounts:
    """Tokens of each domain that training received of each stream, over all ranks and resumes."""

    def __init__(
        self, plan: EpochPlan, source: TokenSource, domains: TokenDomains, cursor: Cursor
    ) -> None:
        """Begin with nothing counted.

        Args:
            plan: of any rank.
            source: of the tokens.
            domains: of the streams.
            cursor: where counting begins.
        """
        self._plan, self._source, self._domains = plan, source, domains
        self._counts: Ints = np.zeros((len(plan.sizes), len(domains.names)), np.int64)
        self._at = cursor

    def up_to(self, cursor: Cursor) -> list[dict[str, int]]:
        """Of each stream the tokens of its domains up to a cursor, by the domains' names."""
        while self._at.epoch < cursor.epoch:
            self._count_to(self._plan.epoch_size)
            self._at = self._plan.next_epoch(self._at)
        self._count_to(cursor.position)
        names = self._domains.names
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
        """What a state at a cursor holds of it.

        Args:
            cursor: of the state.
            fingerprints: of the streams.
        """
        streams = [
            {"fingerprint": fingerprint, "tokens": tokens}
            for fingerprint, tokens in zip(fingerprints, self.up_to(cursor), strict=True)
        ]
        return {STATE_KEY: {"by": self._domains.by, "streams": streams}}

    def resume(
        self, state: Mapping[str, Any], cursor: Cursor, fingerprints: Sequence[Sequence[str]]
    ) -> None:
        """Take the counts of a state; from zero if it counted other domains, or none.

        Args:
            state: as it was saved.
            cursor: that it stands for.
            fingerprints: of each stream, then those of its older generations.
        """
        self._counts, self._at = np.zeros_like(self._counts), cursor
        saved = state.get(STATE_KEY)
        if saved is None or saved["by"] != self._domains.by:
            return
        numbers = {name: number for number, name in enumerate(self._domains.names)}
        of_stream: dict[str, list[Mapping[str, int]]] = {}  # one dataset may be two streams
        for each in saved["streams"]:
            of_stream.setdefault(each["fingerprint"], []).append(each["tokens"])
        for stream, names in enumerate(fingerprints):
            found = next((of_stream[name] for name in names if of_stream.get(name)), None)
            for domain, tokens in found.pop(0).items() if found else ():
                self._counts[stream, numbers[domain]] = tokens
