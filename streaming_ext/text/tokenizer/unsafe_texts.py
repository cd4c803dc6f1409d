"""Search for the documents that go to the reference, by the ids that the fast engine gives.

There are four times as many bytes as ids, so looking at the ids costs little. The bytes of the ids,
one after another, are the bytes of the document. So a code point that engines may split differently
lies in one token, or begins at the end of a token and goes on in the next tokens. A look at each
pair of ids leaves few candidates, and the bytes of these decide.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from streaming_ext.text.documents.text_array import taken

# The code points on which engines may split or normalize text differently. Engines know the same
# patterns, but each has its own tables of Unicode. A code point that Unicode 14.0 assigned has the
# same class in all of them, with few exceptions; tests try each with the pinned versions.
# "unassigned" are those of the first plane that 18.0 does not assign either: tests try each of them
# with the newest versions of engines, too, so only unknown versions are not trusted with them.
TABLE: Final = Path(__file__).with_name("unsafe_code_points.json")
_TRIED: Final = {"gigatoken": [0, 10], "tokenizers": [0, 23], "tiktoken": [0, 14]}
Ranges = Sequence[tuple[int, int]]  # of code points, both ends included, ascending
# A character that begins but does not end in a token; its bytes at the start of the next token.
_CUT: Final = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})?\Z")
_REST: Final = re.compile(rb"[\x80-\xbf]{0,3}")
_BLOCK: Final = 2**18  # ids processed together: more would leave the caches, fewer cost calls
FURTHER_TOKENS: Final = 3  # in which a character may go on
_FOUND: Final = 1  # the state after a match; the state after harmless bytes is 0
# Groups of states: by these bounds of a character's first byte, then longer beginnings, then that
# of most emoji, then matches.
_FIRST_BYTES: Final = (0xE0, 0xE1, 0xE2, 0xE3, 0xEB)
_LONGER: Final = 5
_EMOJI: Final = b"\xf0\x9f"
_MATCHES: Final = 7


def unsafe_ranges(versions: Mapping[str, str] | None = None) -> Ranges:
    """Return the code points that are left to the reference.

    Args:
        versions: the versions of both engines, by package; None if they are unknown.
    """
    table = json.loads(TABLE.read_bytes())
    is_tried = versions is not None and all(
        [*map(int, re.findall(r"\d+", version))][:2] <= _TRIED[package]
        for package, version in versions.items()
    )
    return sorted(table["changed"] + ([] if is_tried else table["unassigned"]))


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
        table = np.array(states.steps([*rests]), np.uint32)
        # ends, begins: (ids,), the state after each token, and the rest that it begins with
        ends, begins = np.zeros((2, max(vocabulary) + 1), np.uint32)
        ends[ids], begins[ids] = state_of, rest_of
        ends[[*holders, *reserved]] = _FOUND
        self._ends, self._begins = ends, begins
        self._table, self._width = table.ravel(), np.uint32(len(rests))
        # pairs: (ids,), the group of the state after a token as a bit of the high byte, and in the
        # low byte the groups that its rest may continue to a match
        groups = states.groups()
        goes_on = [np.bitwise_or.reduce(groups, where=column > 0) for column in table.T]
        self._pairs = groups[ends] << 8 | np.array(goes_on, np.uint16)[begins]

    def rows(self, ids: npt.NDArray[np.uint32], offsets: Ints) -> Ints:
        """Return the documents that hold a match, ascending.

        Args:
            ids: the ids of all documents, by the fast engine.
            offsets: the positions at which the ids of each document begin.
        """
        last = len(ids) - 1
        at = np.concatenate(
            [
                *(start + self._candidates(ids[start:]) for start in range(0, last, _BLOCK)),
                np.arange(max(last, 0), len(ids)),
            ]
        )
        state = taken(self._ends, taken(ids, at))
        for number in range(1, FURTHER_TOKENS + 1):
            at, state = at[state > 0], state[state > 0]
            rest = taken(self._begins, taken(ids, np.minimum(at + number, last)))
            state = taken(self._table, state * self._width + rest)
        rows: Ints = np.unique(np.searchsorted(offsets, at[state > 0], side="right") - 1)
        return rows

    def _candidates(self, ids: npt.NDArray[np.uint32]) -> Ints:
        """Find the first ids that may be, or begin, a match, by the id after each of them."""
        pairs = taken(self._pairs, ids[: _BLOCK + 1])
        may = pairs[:-1] // 256  # NumPy divides faster than it shifts
        may &= pairs[1:]
        return np.flatnonzero(may != 0) if may.max() else np.empty(0, np.int64)


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

    def groups(self) -> npt.NDArray[np.uint16]:
        """Return the group of each state, as a bit; none for the state after harmless bytes."""
        groups = [
            _LONGER + (text == _EMOJI)
            if len(text) > 1
            else bisect_right(_FIRST_BYTES, text[0]) % _LONGER
            for text in self._open
        ]
        return np.array([0, *(1 << group for group in (_MATCHES, *groups))], np.uint16)
