"""Text in lines: blocks of whole lines, of a stream or of a span of a file that is not packed.

A line begins at byte 0 and behind each newline. Of 10 bytes, with lines that begin at 0, 3 and 8:

    a b | c d e f | g h      | is a newline
          [ 3 . 5 )          holds `cdef`, read to its end at 8
                [ 5 . . 10 ) holds `gh`: `cdef` began before
"""

import codecs
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streaming_ext.text.documents.document_rows import MAX_BATCH_ROWS, MAX_TEXT_BYTES
from streaming_ext.text.documents.files import SourceBytes, Span
from streaming_ext.text.documents.streams import Stream

_NEWLINE = ord("\n")
_TAIL_BYTES = 2**16  # read at once of the line that goes on behind the end of a span


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Some consecutive lines.

    Attributes:
        data: their bytes, uint8.
        starts, ends: of each line in `data`, its end left out: (lines,).
        first_line: number of the first one, from 0.
        offset: of `data` in the stream.
        too_long: lines that are left out, since no text may be so long; they are empty here.
    """

    data: memoryview
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    first_line: int
    offset: int
    too_long: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.starts)


def line_blocks(stream: Stream, block_bytes: int) -> Iterator[LineBlock]:
    """All lines of a stream, in blocks of about so many bytes; a longer line stands alone."""
    line = offset = 0
    for data, left_out in _whole_lines(stream, block_bytes):
        if left_out:
            nothing = np.zeros(1, np.int64)
            yield LineBlock(memoryview(b""), nothing, nothing, line, offset, frozenset({0}))
            line, offset = line + 1, offset + left_out
            continue
        marked = not offset and not stream.start and data.startswith(codecs.BOM_UTF8)
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
        if not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        starts = np.concatenate([[len(codecs.BOM_UTF8) if marked else 0], ends[:-1] + 1])
        too_long = np.flatnonzero(ends - starts > MAX_TEXT_BYTES)
        ends[too_long] = starts[too_long]
        whole = LineBlock(
            memoryview(data), starts, ends, line, offset, frozenset(too_long.tolist())
        )
        blocks = deque(_split(whole))
        line += len(starts)
        offset += len(data)
        del data, whole  # a line may be large, and whoever reads the block lets go of it
        while blocks:
            yield blocks.popleft()


def _split(block: LineBlock) -> Iterator[LineBlock]:
    """The same lines, so many at once as a batch may hold."""
    for first in range(0, len(block), MAX_BATCH_ROWS):
        starts = block.starts[first : first + MAX_BATCH_ROWS]
        ends = block.ends[first : first + MAX_BATCH_ROWS]
        begin = int(starts[0])
        yield LineBlock(
            block.data[begin : int(ends[-1])],
            starts - begin,
            ends - begin,
            block.first_line + first,
            block.offset + begin,
            frozenset(n - first for n in block.too_long),
        )


def _whole_lines(stream: Stream, block_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Blocks of lines; or nothing, and the bytes of a line that is too long to be kept."""
    rest: list[bytes] = []
    waiting = left_out = 0
    while data := stream.read(block_bytes):
        cut = data.rfind(b"\n") + 1
        if left_out:
            end = data.find(b"\n") + 1
            left_out += end or len(data)
            if end:
                yield b"", left_out
                left_out = 0
                if end < cut:
                    yield data[end:cut], 0
                rest, waiting = [data[cut:]] if cut < len(data) else [], len(data) - cut
        elif cut:
            rest.append(data[:cut] if cut < len(data) else data)
            whole, rest = rest, [data[cut:]] if cut < len(data) else []
            waiting = len(data) - cut
            del data
            yield _joined(whole), 0
        else:
            rest.append(data)
            waiting += len(data)
            if waiting > MAX_TEXT_BYTES:
                rest, waiting, left_out = [], 0, waiting
    if left_out:
        yield b"", left_out
    elif rest:
        yield b"".join(rest), 0


def _joined(parts: list[bytes]) -> bytes:
    """The parts in a row; they are gone afterwards, for they may be large."""
    joined = b"".join(parts) if len(parts) > 1 else parts[0]
    parts.clear()
    return joined


class LinesOfSpan(Stream):
    """A stream of these lines, whole ones, read as they are asked for."""

    def __init__(self, file: SourceBytes, span: Span, request_bytes: int) -> None:
        self._file, self._request = file, request_bytes
        self.start, self._end = span
        self._at = max(self.start - 1, 0)  # a newline there makes a line begin at `start`
        self._skips = self.start > 0
        self._done = self.start >= self._end

    @property
    def fraction(self) -> float:  # type: ignore[override]
        """How much of the span is read, in [0, 1]."""
        done = (self._at - self.start) / max(self._end - self.start, 1)
        return min(1.0, max(0.0, done))

    def more(self, size: int) -> bytes:
        """The next bytes; none behind the last line that begins in the span."""
        while not self._done and self._at < self._file.size:
            end = max(self._end, self._at + _TAIL_BYTES)
            end = min(end, self._at + self._request, self._file.size)
            begin, data = self._at, self._file.read(self._at, end)
            self._at = end
            if end >= self._end and (after := _line_end(data, self._end - begin)) is not None:
                data, self._done = data[:after], True
                self._at = begin + after
            if self._skips:
                cut = data.find(b"\n") + 1
                self._skips = not cut
                begin, data = begin + cut, data[cut:] if cut else b""
                self.origin = begin
            if data:
                return data
        return b""


def bytes_of_lines(file: SourceBytes, span: Span) -> tuple[Span, ...]:
    """What must be read to know the lines of a span and no others."""
    start, end = max(span[0] - 1, 0), span[1]
    if span[0] >= end:
        return ()
    at = max(end - 1, start)
    while at < file.size:
        until = min(at + _TAIL_BYTES, file.size)
        if (after := _line_end(file.read(at, until), end - at)) is not None:
            return ((start, at + after),)
        at = until
    return ((start, file.size),)


def _line_end(data: bytes, end: int) -> int | None:
    """Where the line that holds byte `end - 1` of `data` ends, its newline with it."""
    newline = data.find(b"\n", max(end - 1, 0))
    return newline + 1 if newline >= 0 else None


class MarkedLines:
    """A stream with one more line: no row of the table, unless a quote is open at the end.

    No span ends with a carriage return: Arrow drops a line feed that a span begins with then.
    """

    closed = False

    def __init__(self, stream: Stream, mark: str) -> None:
        self._stream, self.mark, self.ended = stream, mark, False
        self._rest, self._last, self._over = b"", b"\n", False

    def read(self, size: int) -> bytes:
        """The next bytes."""
        if not self._over:
            self._rest += self._stream.read(size - len(self._rest))
            self._last = self._rest[-1:] or self._last
            self._over = len(self._rest) < size
            if self._over:
                self._rest += b"\n"[self._last == b"\n" :] + f"{self.mark}\n".encode()
        end = min(size, len(self._rest))
        end -= self._rest[:end].endswith(b"\r")
        data, self._rest = self._rest[:end], self._rest[end:]
        return data
