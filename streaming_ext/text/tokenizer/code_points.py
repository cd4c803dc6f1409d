"""The code points on which the fast engine and the reference split text differently.

Both engines know the same patterns, but each brings its own Unicode tables. Where the tables differ
on a code point, a text that holds it may be split differently.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.text.tokenizer.fast_tokenizer import probe_for, splitters
from streaming_ext.text.tokenizer.tokenizer import Tokenizer

KNOWN = Path(__file__).with_name("known_code_points.json")  # the module of this name renews it
_CACHE_VERSION = 1
_SCAN_BYTES = 1 << 20  # of a block: it stays in the cache of a processor while it is scanned
_HIGH_BITS = np.uint64(0x8080808080808080)
_NUM_CODE_POINTS = 0x110000
_PROBE_BLOCK = 1024  # code points a text
_MAX_THREADS = 4

# {c} is the code point. The lines tell apart the classes that a pattern can name: letter, number,
# space, anything else; upper case, lower case, mark; newline; contractions that ignore case; groups
# of three digits; what may stand before letters.
_TEMPLATES = (
    *("a{c}a", "A{c}A", "{c}Aa", "1{c}1", "12{c}45", "!{c}!", "!!{c}a", "  {c}a", "{c}'s"),
    *("'{c}", "a'{c}e", "'r{c}A", "\n{c}\n"),
)
# Tells letters and marks, numbers, spaces and all others apart. All others are one class to every
# known pattern, beside newlines and slashes: nine in ten code points need no more than this.
_SCREEN = "a{c}1 {c}!\n"
_OTHERS = "\u00d7\u2030\U0001f600"  # of two, three and four bytes


@dataclass(frozen=True)
class UnsafeCodePoints:
    """A set of code points, as sorted disjoint ranges with both ends included."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, code_points: Iterable[int]) -> UnsafeCodePoints:
        ranges: list[tuple[int, int]] = []
        for point in sorted(set(code_points)):
            if ranges and ranges[-1][1] == point - 1:
                ranges[-1] = (ranges[-1][0], point)
            else:
                ranges.append((point, point))
        return cls(tuple(ranges))

    @classmethod
    def from_json(cls, value: Any) -> UnsafeCodePoints:
        """The inverse of `to_json`; raises ValueError or TypeError for anything else."""
        points = cls(tuple((int(start), int(end)) for start, end in value))
        previous = -2
        for start, end in points.ranges:
            if not previous + 1 < start <= end < 0x110000:
                raise ValueError(f"not sorted disjoint ranges of code points: {start} to {end}")
            previous = end
        return points

    def to_json(self) -> list[list[int]]:
        return [list(pair) for pair in self.ranges]

    def __len__(self) -> int:
        return sum(end - start + 1 for start, end in self.ranges)

    def __contains__(self, code_point: int) -> bool:
        index = bisect.bisect_right(self.ranges, (code_point, 0x110000)) - 1
        return index >= 0 and code_point <= self.ranges[index][1]

    def contains_any(self, text: str) -> bool:
        return any(ord(character) in self for character in set(text))

    def rows_with_any(
        self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """The documents that hold one of these code points, ascending; none may be ASCII.

        Args:
            data: valid UTF-8.
            offsets: document i is `data[offsets[i]:offsets[i + 1]]`.
        """
        if not self.ranges or offsets[0] == offsets[-1]:
            return np.empty(0, np.int64)
        if self.ranges[0][0] < 0x80:
            raise ValueError(f"cannot scan for ASCII: {self.ranges[0]}")
        # Arrow's buffers begin aligned; words that do not are read several times slower.
        start = int(offsets[0]) & ~7
        positions = self._candidates(data[start : offsets[-1]]) + start
        positions = positions[positions >= offsets[0]]
        # Candidates share two bytes with a code point of the set; now all of them are read.
        points = _decode_at(data, positions)
        starts, ends = np.array(self.ranges, np.int64).T
        index = np.searchsorted(starts, points, side="right") - 1
        positions = positions[(index >= 0) & (points <= ends[index])]
        rows: npt.NDArray[np.int64] = np.unique(np.searchsorted(offsets, positions, "right") - 1)
        return rows

    def _candidates(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Where in `data` two bytes stand that one of these code points may begin with.

        Eight bytes at once are asked whether one is beyond ASCII. In most text few are, and only
        these are looked at.
        """
        found = [np.empty(0, np.int64)]
        high_bits = np.empty(min(_SCAN_BYTES, len(data)) // 8, np.uint64)
        is_beyond = np.empty(len(high_bits), bool)
        for start in range(0, len(data), _SCAN_BYTES):
            block = data[start : start + _SCAN_BYTES]
            words = block[: len(block) & ~7].view(np.uint64)
            size = len(words)
            np.bitwise_and(words, _HIGH_BITS, out=high_bits[:size])
            beyond = np.flatnonzero(np.not_equal(high_bits[:size], 0, out=is_beyond[:size]))
            if len(beyond) * 8 > size:
                hits = self._among(data[start : start + _SCAN_BYTES + 1])
                found.append(hits + start)
                continue
            # hits: positions in the few words, eight bytes each, laid end to end
            hits = np.flatnonzero(self._may_lead[words[beyond].view(np.uint8)])
            found.append(beyond[hits >> 3] * 8 + (hits & 7) + start)
            found.append(self._among(block[size * 8 :]) + size * 8 + start)
        positions = np.concatenate(found)
        pairs = (data[positions].astype(np.uint16) << 8) | data[positions + 1]
        narrowed: npt.NDArray[np.int64] = positions[self._two_bytes[pairs]]
        return narrowed

    def _among(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Where in `data` a pair of bytes begins that is in `_two_bytes`."""
        pairs = data[:-1].astype(np.uint16)
        pairs <<= 8
        pairs |= data[1:]
        return np.flatnonzero(self._two_bytes.take(pairs))

    @cached_property
    def _two_bytes(self) -> npt.NDArray[np.bool_]:
        """(65536,) by first and second byte: whether one of these code points begins so."""
        table = np.zeros(1 << 16, bool)
        for start, end in self.ranges:
            # 64 code points in a row share all bytes but the last.
            for point in {*range(start, end + 1, 64), end}:
                encoded = chr(point).encode()
                first = encoded[0] << 8
                # Of two bytes, the second is the last.
                seconds = [encoded[1]] if len(encoded) > 2 else range(0x80, 0xC0)
                table[[first | second for second in seconds]] = True
        return table

    @cached_property
    def _may_lead(self) -> npt.NDArray[np.bool_]:
        """(256,) by first byte."""
        leads: npt.NDArray[np.bool_] = self._two_bytes.reshape(256, 256).any(axis=1)
        return leads


def find_unsafe_code_points(tokenizer: Tokenizer, cache_dir: Path) -> UnsafeCodePoints:
    """What both engines split differently; empty where the fast engine is not used anyway.

    It depends on the pattern and the engines' versions alone. Where these are common, it is known;
    otherwise all of Unicode is tried, once for a `cache_dir`, in which the result is kept.
    """
    splitting = splitters(tokenizer)
    if splitting is None:
        return UnsafeCodePoints()
    key = key_of(splitting)
    known = known_ranges(key)
    if known is not None:
        return UnsafeCodePoints.from_json(known)
    path = cache_dir / f"code-points-{key[:32]}.json"
    found = _read_cache(path, key)
    if found is None:
        found = try_all_code_points(tokenizer)
        _write_cache(path, key, found)
    return found


def known_ranges(key: str) -> Any:
    """The ranges that the package knows for a key of `key_of`; None where it knows none."""
    known = _known().get(key)
    return known and known["ranges"]


@cache
def _known() -> Mapping[str, Any]:
    known: Mapping[str, Any] = json.loads(KNOWN.read_bytes())
    return known


def key_of(splitting: str) -> str:
    """A name for what decides the result: what `splitters` says, and how it is found out."""
    parts = [_CACHE_VERSION, splitting, _TEMPLATES, _SCREEN]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def try_all_code_points(tokenizer: Tokenizer) -> UnsafeCodePoints:
    """Try all of Unicode on both engines of a tokenizer that has `splitters`.

    The probe has a vocabulary of its own, in which every byte pair across an ASCII neighbour is a
    token, so that each place where a text is split shows in the ids.
    """
    probe = probe_for(tokenizer, _pairs())
    return _probe(probe.reference, probe.fast.load)


def _pairs() -> list[bytes]:
    """All byte pairs across a character's edge with ASCII on one side; ASCII on both comes last."""
    ascii_bytes, tails, leads = range(0x80), range(0x80, 0xC0), range(0xC2, 0xF5)
    pairs = [bytes((tail, a)) for tail in tails for a in ascii_bytes]
    pairs += [bytes((a, lead)) for a in ascii_bytes for lead in leads]
    return pairs + [bytes((a, b)) for a in ascii_bytes for b in ascii_bytes]


def _probe(reference: Callable[[str], Sequence[int]], load: Callable[[], Any]) -> UnsafeCodePoints:
    full = "\n".join(_TEMPLATES) + "\n"
    with_ascii = full + "".join(f"{chr(other)}{{c}}\n" for other in range(0x80))
    blocks = [range(start, start + 16) for start in range(0, 0x80, 16)]
    blocks += [
        range(max(start, 0x80), start + _PROBE_BLOCK)
        for start in range(0, _NUM_CODE_POINTS, _PROBE_BLOCK)
        if not 0xD800 <= start < 0xE000
    ]
    merged_by_length = {
        len(other.encode()): _merged(reference(_SCREEN.replace("{c}", other))) for other in _OTHERS
    }

    def work(share: Sequence[range]) -> list[int]:
        fast = load()  # one a thread: it is not made to be shared

        def agreed(points: range, template: str) -> npt.NDArray[np.uint32] | None:
            text = "".join(template.replace("{c}", chr(point)) for point in points)
            ids = np.array(reference(text), np.uint32)
            return ids if np.array_equal(fast.encode(text), ids) else None

        def all_other(points: range) -> bool:
            ids = agreed(points, _SCREEN)
            merged = np.tile(merged_by_length[len(chr(points[0]).encode())], len(points))
            return ids is not None and np.array_equal(_merged(ids), merged)

        def differing(points: range, template: str) -> list[int]:
            if agreed(points, template) is not None:
                return []
            if len(points) == 1:
                return list(points)
            size = -(-len(points) // 8)
            pieces = [points[start : start + size] for start in range(0, len(points), size)]
            return [point for piece in pieces for point in differing(piece, template)]

        found: list[int] = []
        for points in share:
            if points[0] < 0x80:
                found += differing(points, with_ascii)
            elif not all_other(points):
                found += differing(points, full)
        return found

    num_threads = min(_MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(num_threads) as pool:
        shares = [blocks[index::num_threads] for index in range(num_threads)]
        return UnsafeCodePoints.of(point for found in pool.map(work, shares) for point in found)


def _merged(ids: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Which ids of the probe's vocabulary are byte pairs."""
    return np.asarray(ids) >= 256


def _read_cache(path: Path, key: str) -> UnsafeCodePoints | None:
    """What an earlier run found, or None where there is nothing or it is damaged."""
    try:
        saved = json.loads(path.read_bytes())
        if saved["key"] != key or saved["sha256"] != _checksum(saved["ranges"]):
            return None
        return UnsafeCodePoints.from_json(saved["ranges"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_cache(path: Path, key: str, points: UnsafeCodePoints) -> None:
    ranges = points.to_json()
    text = json.dumps({"key": key, "sha256": _checksum(ranges), "ranges": ranges})
    with suppress(OSError):  # a cache that cannot be written costs seconds, not the run
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".code-points-")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)


def _checksum(ranges: Any) -> str:
    return hashlib.sha256(json.dumps(ranges).encode()).hexdigest()


def _decode_at(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The code points that begin at `positions` of valid UTF-8."""
    lead = data[positions].astype(np.int64)
    # extra: how many bytes follow the first
    extra = (lead >= 0xC0).astype(np.int64) + (lead >= 0xE0) + (lead >= 0xF0)
    points: npt.NDArray[np.int64] = lead & np.array([0x7F, 0x1F, 0x0F, 0x07])[extra]
    for step in (1, 2, 3):
        more = extra >= step
        following = data[positions[more] + step].astype(np.int64) & 0x3F
        points[more] = (points[more] << 6) | following
    return points
