"""Text in lines: blocks of whole lines, whatever their length, and where each line lies in them."""

from collections import deque
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
        too_long: of the lines that are left out, since no text may be so long; empty here.
    """

    data: memoryview
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    first_line: int
    offset: int
    too_long: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.starts)


def line_blocks(
    stream: Stream, *, block_bytes: int, name: str, skip_long: bool = False
) -> Iterator[LineBlock]:
    """All lines of a stream, in blocks of about so many bytes; a longer line stands in one alone.

    Args:
        stream: to read.
        block_bytes: how many.
        name: what messages call the file.
        skip_long: leave out lines that are longer than any text may be.

    Raises:
        SourceError: there is such a line, and it is not to be left out.
    """
    line = offset = 0
    for data, left_out in _whole_lines(stream, block_bytes, skip_long=skip_long):
        if left_out:
            if not skip_long:
                raise _too_long(name, line, offset, stream)
            nothing = np.zeros(1, np.int64)
            yield LineBlock(memoryview(b""), nothing, nothing, line, offset, (0,))
            line, offset = line + 1, offset + left_out
            continue
        marked = not offset and not stream.start and data.startswith(_BYTE_ORDER_MARK)
        skipped = len(_BYTE_ORDER_MARK) if marked else 0
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
        if not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        starts = np.concatenate([[skipped], ends[:-1] + 1])
        if (too_long := np.flatnonzero(ends - starts > MAX_TEXT_BYTES)).size:
            if not skip_long:
                first = int(too_long[0])
                raise _too_long(name, line + first, offset + int(starts[first]), stream)
            ends[too_long] = starts[too_long]
        whole = LineBlock(memoryview(data), starts, ends, line, offset, tuple(too_long.tolist()))
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
            tuple(n - first for n in block.too_long if 0 <= n - first < MAX_BATCH_ROWS),
        )


def _whole_lines(
    stream: Stream, block_bytes: int, *, skip_long: bool
) -> Iterator[tuple[bytes, int]]:
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
                if not skip_long:
                    yield b"", waiting
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


def line_text(line: int, stream: Stream) -> str:
    """The number of a line, from 1, for people."""
    return f"line {line + 1}" + (f" from byte {stream.start} on" if stream.start else "")


def _too_long(name: str, line: int, byte: int, stream: Stream) -> SourceError:
    place = f"{line_text(line, stream)}, byte {stream.origin + byte}"
    return SourceError(
        f"{name}: {place}: longer than {MAX_TEXT_BYTES} bytes. Cut it, leave the file out, or pass "
        "--on-bad-document skip."
    )
