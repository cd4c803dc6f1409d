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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.core.fast_tokenizer import probe_for
from tasks.core.tokenizer import Tokenizer

_CACHE_VERSION = 1
_SCAN_BYTES = 1 << 18  # of a block that stays in the processor's cache while it is scanned
_MAX_LEAD_RUNS = 4
_PROBE_BLOCK = 1024  # code points a text
_MAX_THREADS = 4

# {c} is the code point. Each line tells apart classes that a pattern can name: letter, number,
# space, anything else; upper case, lower case, mark; newline; case-folded contraction; groups of
# three digits; what may follow punctuation; what may stand before letters.
_TEMPLATES = (
    *("a{c}a", "A{c}A", "1{c}1", "12{c}45", "!{c}!", " {c} ", "  {c}", "a  {c}a", "{c}'s"),
    *("'{c}", "a'{c}e", "A'r{c}A", "\n{c}\n", "!\n{c}/", "!/{c}a", "a{c}'{c}A"),
)
# For the planes in which no character is assigned.
_FEW_TEMPLATES = ("a{c}a", "1{c}1", " {c}!", "\n{c}")
_FULL_PLANES = (0, 1, 2, 3, 14)


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
        """The documents that hold one of these code points, ascending.

        Args:
            data: valid UTF-8.
            offsets: document i is `data[offsets[i]:offsets[i + 1]]`.
        """
        if not self.ranges or len(offsets) < 2:
            return np.empty(0, np.int64)
        positions = self._positions(data[offsets[0] : offsets[-1]]) + offsets[0]
        return np.unique(np.searchsorted(offsets, positions, side="right") - 1)

    def _positions(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Where in `data` these code points begin: candidates by first byte, then two, then all."""
        positions = _bytes_in_runs(data, self._lead_runs)
        # A code point of one byte may be the last byte; its table rows are all equal.
        following = np.minimum(positions + 1, len(data) - 1)
        positions = positions[self._two_bytes[data[positions], data[following]]]
        points = _decode_at(data, positions)
        starts, ends = np.array(self.ranges, np.int64).T
        index = np.searchsorted(starts, points, side="right") - 1
        return positions[(index >= 0) & (points <= ends[index])]

    @cached_property
    def _lead_runs(self) -> list[tuple[int, int]]:
        """Ranges of first bytes, few enough to compare with each."""
        leads = {b for pair in self.ranges for b in range(*_leads(pair))}
        runs = list(UnsafeCodePoints.of(leads).ranges)
        return runs if len(runs) <= _MAX_LEAD_RUNS else [(runs[0][0], runs[-1][1])]

    @cached_property
    def _two_bytes(self) -> npt.NDArray[np.bool_]:
        """(256, 256) by first and second byte: whether such a code point may be among these."""
        table = np.zeros((256, 256), bool)
        for start, end in self.ranges:
            # 64 code points in a row share all bytes but the last.
            for point in {*range(start, end + 1, 64), end}:
                encoded = chr(point).encode()
                table[encoded[0], encoded[1] if len(encoded) > 2 else slice(None)] = True
        return table


def find_unsafe_code_points(tokenizer: Tokenizer, cache_dir: Path | None) -> UnsafeCodePoints:
    """Try all of Unicode on both engines; the result is kept in `cache_dir`, where given.

    It depends on the pattern and the engines' versions alone: the probe has a vocabulary of its
    own, in which every byte pair across an ASCII neighbour is a token, so that each place where
    a text is split shows in the ids. Empty where the fast engine is not used anyway.
    """
    probe = probe_for(tokenizer, _pairs())
    if probe is None:
        return UnsafeCodePoints()
    parts = [_CACHE_VERSION, probe.key, _TEMPLATES, _FEW_TEMPLATES]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    path = cache_dir / f"code-points-{key[:32]}.json" if cache_dir else None
    found = _read_cache(path, key) if path else None
    if found is None:
        found = _probe(probe.reference, probe.fast.load)
        if path:
            _write_cache(path, key, found)
    return found


def _pairs() -> list[bytes]:
    """All byte pairs across a character's edge with ASCII on one side; ASCII on both comes last."""
    ascii_bytes, tails, leads = range(0x80), range(0x80, 0xC0), range(0xC2, 0xF5)
    pairs = [bytes((tail, a)) for tail in tails for a in ascii_bytes]
    pairs += [bytes((a, lead)) for a in ascii_bytes for lead in leads]
    return pairs + [bytes((a, b)) for a in ascii_bytes for b in ascii_bytes]


def _probe(reference: Callable[[str], Sequence[int]], load: Callable[[], Any]) -> UnsafeCodePoints:
    ascii_templates = (*_TEMPLATES, *(f"{chr(other)}{{c}}" for other in range(0x80)))
    blocks: list[tuple[range, str]] = [
        (range(start, start + 16), _joined(ascii_templates)) for start in range(0, 0x80, 16)
    ]
    full, few = _joined(_TEMPLATES), _joined(_FEW_TEMPLATES)
    for start in range(0, 0x110000, _PROBE_BLOCK):
        points = range(max(start, 0x80), start + _PROBE_BLOCK)
        if not 0xD800 <= start < 0xE000:
            blocks.append((points, full if start >> 16 in _FULL_PLANES else few))

    def work(share: Sequence[tuple[range, str]]) -> list[int]:
        fast = load()  # one a thread: it is not made to be shared

        def differing(points: range, template: str) -> list[int]:
            text = "".join(template.replace("{c}", chr(point)) for point in points)
            if np.array_equal(fast.encode(text), np.array(reference(text), np.uint32)):
                return []
            if len(points) == 1:
                return list(points)
            size = -(-len(points) // 8)
            pieces = [points[start : start + size] for start in range(0, len(points), size)]
            return [point for piece in pieces for point in differing(piece, template)]

        return [point for points, template in share for point in differing(points, template)]

    num_threads = min(_MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(num_threads) as pool:
        shares = [blocks[index::num_threads] for index in range(num_threads)]
        return UnsafeCodePoints.of(point for found in pool.map(work, shares) for point in found)


def _joined(templates: Sequence[str]) -> str:
    return "\n".join(templates) + "\nx\n"


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


def _leads(pair: tuple[int, int]) -> tuple[int, int]:
    """The first bytes of a range of code points, as arguments of `range`."""
    first, last = (chr(point).encode()[0] for point in pair)
    return first, last + 1


def _bytes_in_runs(
    data: npt.NDArray[np.uint8], runs: Sequence[tuple[int, int]]
) -> npt.NDArray[np.int64]:
    """The positions of all bytes in one of `runs`."""
    hit, hit_too = np.empty(_SCAN_BYTES, bool), np.empty(_SCAN_BYTES, bool)
    shifted = np.empty(_SCAN_BYTES, np.uint8)
    found: list[npt.NDArray[np.int64]] = []
    for start in range(0, len(data), _SCAN_BYTES):
        block = data[start : start + _SCAN_BYTES]
        size = len(block)
        for number, (first, last) in enumerate(runs):
            out = (hit_too if number else hit)[:size]
            if first == last:
                np.equal(block, first, out=out)
            elif last >= 0xF4:  # no valid byte is above
                np.greater_equal(block, first, out=out)
            else:  # unsigned, so what is below `first` wraps around to above the run
                np.subtract(block, first, out=shifted[:size])
                np.less_equal(shifted[:size], last - first, out=out)
            if number:
                hit[:size] |= out
        if hit[:size].any():
            found.append(np.flatnonzero(hit[:size]) + start)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _decode_at(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The code points that begin at `positions` of valid UTF-8."""
    lead = data[positions].astype(np.int64)
    # extra: how many bytes follow the first
    extra = (lead >= 0xC0).astype(np.int64) + (lead >= 0xE0) + (lead >= 0xF0)
    points = lead & np.array([0x7F, 0x1F, 0x0F, 0x07])[extra]
    for step in (1, 2, 3):
        more = extra >= step
        following = data[positions[more] + step].astype(np.int64) & 0x3F
        points[more] = (points[more] << 6) | following
    return points
