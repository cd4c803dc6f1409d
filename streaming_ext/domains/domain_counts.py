"""Tokens of each domain that training received since its start, over all ranks and resumes.

They are reckoned from the order, without asking other ranks: when they are asked for, those of the
places that came since they were asked for last are added. So training itself does nothing for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.batches.token_source import TokenSource
from streaming_ext.checkpoint.consistent import count_of
from streaming_ext.domains.token_domains import TokenDomains
from streaming_ext.errors import ConfigMismatchError
from streaming_ext.sampler.cursor import Cursor
from streaming_ext.sampler.epoch_plan import EpochPlan

STATE_KEY: Final = "domains"  # of a state
_AT_ONCE: Final = 1 << 15  # places


class DomainCounts:
    """The account of one loader."""

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
        self._count_to(cursor.place)
        names = self._domains.names
        return [
            {names[number]: int(counts[number]) for number in np.flatnonzero(counts).tolist()}
            for counts in self._counts
        ]

    def _count_to(self, place: int) -> None:
        """Count up to a place of the epoch, or back to it where the epoch began anew."""
        plan, here = self._plan, self._at.place
        begin, end, sign = (here, place, 1) if here <= place else (place, here, -1)
        for first in range(begin, end, _AT_ONCE):
            places = np.arange(first, min(first + _AT_ONCE, end))
            streams, sequences = plan.at_places(self._at, places)
            if sequences.size:
                spans = self._source.locate(streams, sequences, plan.length).spans(
                    slice(0, len(sequences))
                )
                self._counts += sign * self._domains.count(spans)
        self._at = replace(self._at, place=place)

    def state(self, cursor: Cursor, fingerprints: Sequence[str]) -> dict[str, Any]:
        """What a state holds of it.

        Args:
            cursor: of the state.
            fingerprints: of the streams.
        """
        told = [
            {"fingerprint": fingerprint, "tokens": tokens}
            for fingerprint, tokens in zip(fingerprints, self.up_to(cursor), strict=True)
        ]
        return {STATE_KEY: {"by": self._domains.by, "streams": told}}

    def saved(
        self, state: Mapping[str, Any], fingerprints: Sequence[str], *, earlier: Sequence[str] = ()
    ) -> Ints:
        """What a state holds of it; nothing where it counted other domains, or none.

        Args:
            state: as it was saved.
            fingerprints: of the streams.
            earlier: of older generations of the one stream, whose counts are its own.

        Returns:
            Tokens: (streams, domains).

        Raises:
            ConfigMismatchError: it is damaged.
        """
        counts = np.zeros_like(self._counts)
        told = state.get(STATE_KEY)
        try:
            if told is None or told["by"] != self._domains.by:
                return counts
            numbers = {name: number for number, name in enumerate(self._domains.names)}
            of_stream: dict[str, list[Mapping[str, int]]] = {}  # one dataset may be two streams
            for each in told["streams"]:
                of_stream.setdefault(each["fingerprint"], []).append(each["tokens"])
            for stream, fingerprint in enumerate(fingerprints):
                own = [each for each in (fingerprint, *earlier) if of_stream.get(each)][:1]
                for name, tokens in of_stream[own[0]].pop(0).items() if own else ():
                    counts[stream, numbers[name]] = count_of(tokens)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigMismatchError(f"The state's counts are damaged: {error!r}.") from error
        return counts

    def go_on(self, counts: Ints, cursor: Cursor) -> None:
        """Go on from what `saved` found in a state, and the cursor that it stands for."""
        self._counts, self._at = counts, cursor
