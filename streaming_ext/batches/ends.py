"""Where documents end in the shards that are open: found once a shard, looked up by row.

A batch then costs as much as it has documents, whatever its number of tokens. Kept in memory of
this process: four bytes a document and four a block of tokens, about a hundredth of the shard.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from streaming_ext.shards.arena import Arena

_BLOCK: Final = 512  # tokens; a row that begins at a multiple of it is looked up in one step
_SCANNED: Final = 1 << 18  # tokens looked at together: what a core's own cache holds
_BEFORE: Final = -2  # not next to the first token
_BEYOND: Final = np.iinfo(np.int32).max


class DocumentEnds:
    """The places of the end-of-text ids of each open shard.

    Attributes:
        flat: per open shard, at its own place: the number of ends before each block, one end
            before all tokens, the ends in order, and one beyond all tokens.
    """

    def __init__(self, tokens: Ints, eot_id: int) -> None:
        """Reserve addresses for the ends of shards of so many `tokens`: (shards,)."""
        self._eot = eot_id
        self._blocks = tokens // _BLOCK + 1
        self._arena = Arena(4 * (self._blocks + tokens + 3))  # as if every token were an end
        self.flat: npt.NDArray[np.int32] = self._arena.all(np.int32)
        self._counts = self._arena.offsets // 4
        self._ends = self._counts + self._blocks + 2
        self._sizes: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        """Memory in use."""
        return sum(list(self._sizes.values()))  # a list, as other threads may add meanwhile

    def add(self, shard: int, raw: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> None:
        """Find the ends of a shard's tokens, given as bytes."""
        step = _SCANNED * dtype.itemsize
        found = [
            # a copy, since the header of a shard may end at an odd byte
            set_places(raw[at : at + step].copy().view(dtype) == self._eot) + at // dtype.itemsize
            for at in range(0, len(raw), step)
        ]
        ends = np.concatenate(found)
        counts = np.searchsorted(ends, np.arange(self._blocks[shard] + 1) * _BLOCK)
        table = np.concatenate([counts, [_BEFORE], ends, [_BEYOND]]).astype(np.int32)
        self._arena.hold(shard, table)
        self._sizes[shard] = table.nbytes

    def drop(self, shard: int) -> None:
        """Forget a shard."""
        if shard in self._sizes:
            del self._sizes[shard]
            self._arena.clear(shard)

    def between(self, shards: Ints, starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
        """The ends in some pieces of open shards, as ranges of `flat`.

        Args:
            shards: of each piece: (pieces,).
            starts: first token of each piece, counted in its shard.
            stops: the token behind each piece.
        """
        return self._first_from(shards, starts), self._first_from(shards, stops)

    def are_padding(self, shards: Ints, places: Ints) -> npt.NDArray[np.bool_]:
        """Whether single tokens are padding: an end behind another end of the same shard.

        A shard's first token is none, since every sample begins a document.
        """
        found = self._first_from(shards, places)
        here: npt.NDArray[np.bool_] = self.flat[found] == places
        behind: npt.NDArray[np.bool_] = self.flat[found - 1] == places - 1
        return here & behind

    def _first_from(self, shards: Ints, places: Ints) -> Ints:
        """Where in `flat` the first end of a shard stands that is at a place or behind it."""
        block, inside = np.divmod(places, _BLOCK)
        found: Ints = self._ends[shards] + self.flat[self._counts[shards] + block]
        if inside.any():
            while (behind := self.flat[found] < places).any():
                found += behind
        return found


def set_places(flags: npt.NDArray[np.bool_]) -> Ints:
    """`np.flatnonzero`, twice as fast where few are set: eight flags are looked at together."""
    if flags.size % 8:
        return np.flatnonzero(flags)
    words = flags.reshape(-1).view(np.uint64)
    chosen = np.flatnonzero(words != 0)
    inside = np.flatnonzero(words[chosen].view(np.bool_))
    places: Ints = chosen[inside >> 3] * 8 + (inside & 7)
    return places
