"""Search for the documents that go to the reference, by the ids that the fast engine gives.

There are four times as many bytes as ids, so looking at the ids costs little. The bytes of the ids,
one after another, are the bytes of the document. So a code point that engines may split differently
lies in one token, or begins at the end of a token and goes on in the next tokens.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from streaming_ext.text.documents.text_array import taken

# The code points on which engines may split or normalize text differently. Engines know the same
# patterns, but each has its own tables of Unicode. A code point that Unicode 14.0 assigned has the
# same class in all of them, with few exceptions; tests try each with the pinned versions.
TABLE: Final = Path(__file__).with_name("unsafe_code_points.json")
Ranges = Sequence[tuple[int, int]]  # of code points, both ends included, ascending
# A character that begins but does not end in a token; its bytes at the start of the next token.
_CUT: Final = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})?\Z")
_REST: Final = re.compile(rb"[\x80-\xbf]{0,3}")
_BLOCK: Final = 2**18  # ids processed together: more would leave the caches, fewer cost calls
_MOST: Final = 3  # further tokens in which a character may go on
_FEW: Final = 1 / 16
_FOUND: Final = 1  # the state after a match; the state after harmless bytes is 0


@cache
def unsafe_ranges() -> Ranges:
    """Return the code points that are left to the reference."""
    return tuple((start, end) for start, end in json.loads(TABLE.read_bytes()))


def parts_of(token: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a token into the end of a character, whole characters and the beginning of one.

    Each may be empty.
    """
    end = len(_REST.match(token)[0])  # type: ignore[index]
    begin = _CUT.search(token, end).start()  # type: ignore[union-attr]
    return token[:end], token[end:begin], token[begin:]


def code_points_from(text: bytes) -> tuple[int, int]:
    """Return the range [first, end) of code points whose characters may begin with these bytes."""
    size = 2 + (text[0] >= 0xE0) + (text[0] >= 0xF0)
    value = text[0] & 0x7F >> size
    for byte in text[1:size]:
        value = value << 6 | byte & 0x3F
    unknown = 6 * max(size - len(text), 0)
    return value << unknown, value + 1 << unknown


class UnsafeTexts:
    """A search for documents that hold certain code points, or give certain ids."""

    def __init__(
        self, vocabulary: Mapping[int, bytes], ranges: Ranges, reserved: Collection[int] = ()
    ) -> None:
        """Prepare the search.

        Args:
            vocabulary: the bytes of each id.
            ranges: the code points to find, beyond ASCII.
            reserved: the ids to find.
        """
        unsafe = np.zeros(0x140000, np.bool_)  # by code point, as many as four bytes could encode
        for start, end in ranges:
            unsafe[start : end + 1] = True
        beyond = {id_: token for id_, token in vocabulary.items() if ranges and not token.isascii()}
        ids, tokens = np.array([*beyond], np.int64), [*beyond.values()]
        whole = [token.decode(errors="ignore") for token in tokens]
        points = np.frombuffer("".join(whole).encode("utf-32-le"), np.uint32)
        holders = np.repeat(ids, [len(characters) for characters in whole])[unsafe[points]]

        rests = {b"": 0}
        rest_of = [rests.setdefault(_REST.match(token)[0], len(rests)) for token in tokens]  # type: ignore[index]
        states = _States(unsafe)
        state_of = [states.after(_CUT.search(token[-3:])[0]) for token in tokens]  # type: ignore[index]
        # table: (states, rests), the state after a state and a rest
        steps = states.steps([*rests])
        self._bits = (len(rests) - 1).bit_length()
        table = np.zeros((len(steps), 1 << self._bits), np.uint32)
        table[:, : len(rests)] = steps
        # edges: (ids,), the state after a token, and in the low bits the rest that it begins with
        edges = np.zeros(max(vocabulary) + 1, np.uint32)
        edges[ids] = state_of
        edges[[*holders, *reserved]] = _FOUND
        edges <<= self._bits
        edges[ids] |= np.array(rest_of, np.uint32)
        self._edges, self._table = edges, (table << self._bits).ravel()
        self._is_open = (edges >> self._bits > 0).view(np.uint8)

    def rows(self, ids: npt.NDArray[np.uint32], offsets: Ints) -> Ints:
        """Return the documents that hold a match, ascending.

        Args:
            ids: the ids of all documents, by the fast engine.
            offsets: the positions at which the ids of each document begin.
        """
        at = np.concatenate(
            [
                start + self._found(ids[start : start + _BLOCK + _MOST])
                for start in range(0, max(len(ids), 1), _BLOCK)
            ]
        )
        rows: Ints = np.unique(np.searchsorted(offsets, at, side="right") - 1)
        return rows

    def _found(self, ids: npt.NDArray[np.uint32]) -> Ints:
        """Find the ids of a block that are, or begin, a match; the last ids can only go on."""
        is_open = taken(self._is_open, ids)
        count = np.count_nonzero(is_open)
        if count == 0:
            return np.empty(0, np.int64)
        rest = np.uint32((1 << self._bits) - 1)
        few = count < _FEW * len(ids)
        # In some languages, some vocabularies leave most ids open. An index does not pay then.
        at = np.flatnonzero(is_open.view(np.bool_)) if few else np.arange(0)
        edges = np.append(taken(self._edges, ids[at] if few else ids), np.zeros(_MOST, np.uint32))
        state = edges[:-_MOST]
        for number in range(1, _MOST + 1):
            if few:
                after = taken(self._edges, ids[np.minimum(at + number, len(ids) - 1)])
            else:
                after = edges[number : number + len(ids)]
            state = taken(self._table, state & ~rest | after & rest)
            if not state.any():
                break
        found = np.flatnonzero(state) if not few else at[state > 0]
        return found[found < _BLOCK]


class _States:
    """The states after a token: bytes of a character that has started and may become a match.

    Example: E0 A4 begins the code points from U+0900 on. With 85 it is U+0905; without further
    bytes it is open.
    """

    def __init__(self, unsafe: npt.NDArray[np.bool_]) -> None:
        self._before = np.append(0, np.cumsum(unsafe))  # unsafe code points before each
        self._known = {b"": 0}
        self._open: list[bytes] = []

    def after(self, text: bytes) -> int:
        """Return the number of the state after the first bytes of a character."""
        if text not in self._known:
            first, end = code_points_from(text)
            count = self._before[end] - self._before[first]
            if count in (0, end - first):
                self._known[text] = _FOUND if count else 0
            else:
                self._known[text] = _FOUND + 1 + len(self._open)
                self._open.append(text)
        return self._known[text]

    def steps(self, rests: list[bytes]) -> list[list[int]]:
        """Return the state after each state and each rest."""
        found = [[0] * len(rests), [_FOUND] * len(rests)]
        found.extend(  # `after` appends to `self._open` meanwhile
            [self.after(text + rest) if rest else 0 for rest in rests] for text in self._open
        )
        return found
