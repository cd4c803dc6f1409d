"""Text in lines: blocks of whole lines, whatever their length, and where each line lies in them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.compression import Stream
from streaming_ext.text.documents.source_format import MAX_BATCH_ROWS, MAX_TEXT_BYTES

_NEWLINE = ord("\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Some consecutive lines.

    Attributes:
        data: their bytes, uint8.
        starts, ends: of each line in `data`, its end left out: (lines,).
        first_line: number of the first one, from 0.
        offset: of `data` in the stream.
    """

    data: memoryview
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    first_line: int
    offset: int

    def __len__(self) -> int:
        return len(self.starts)


def line_blocks(stream: Stream, *, block_bytes: int, name: str) -> Iterator[LineBlock]:
    """All lines of a stream, in blocks of about so many bytes; a longer line stands in one alone.

    Raises:
        SourceError: a line is longer than any text may be.
    """
    line = offset = 0
    for data in _whole_lines(stream, block_bytes, name):
        marked = not offset and not stream.start and data.startswith(_BYTE_ORDER_MARK)
        skipped = len(_BYTE_ORDER_MARK) if marked else 0
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
        if not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        starts = np.concatenate([[skipped], ends[:-1] + 1])
        if (too_long := np.flatnonzero(ends - starts > MAX_TEXT_BYTES)).size:
            raise _too_long(name, line + int(too_long[0]), stream)
        view = memoryview(data)
        for first in range(0, len(starts), MAX_BATCH_ROWS):
            own_starts = starts[first : first + MAX_BATCH_ROWS]
            own_ends = ends[first : first + MAX_BATCH_ROWS]
            begin = int(own_starts[0])
            yield LineBlock(
                view[begin : int(own_ends[-1])],
                own_starts - begin,
                own_ends - begin,
                line + first,
                offset + begin,
            )
        line += len(starts)
        offset += len(data)


def _whole_lines(stream: Stream, block_bytes: int, name: str) -> Iterator[bytes]:
    rest: list[bytes] = []
    waiting = lines = 0
    while data := stream.read(block_bytes):
        cut = data.rfind(b"\n") + 1
        if cut:
            rest.append(data[:cut] if cut < len(data) else data)
            block = b"".join(rest) if len(rest) > 1 else rest[0]
            rest, waiting = [data[cut:]] if cut < len(data) else [], len(data) - cut
            lines += block.count(b"\n")
            yield block
            continue
        rest.append(data)
        waiting += len(data)
        if waiting > MAX_TEXT_BYTES:
            raise _too_long(name, lines, stream)
    if rest:
        yield b"".join(rest)


def line_text(line: int, stream: Stream) -> str:
    """The number of a line, from 1, for people."""
    return f"line {line + 1}" + (f" from byte {stream.start} on" if stream.start else "")


def _too_long(name: str, line: int, stream: Stream) -> SourceError:
    return SourceError(
        f"{name}: {line_text(line, stream)} is longer than {MAX_TEXT_BYTES} bytes. Cut it, or "
        "leave the file out."
    )
