"""Text in lines: blocks of whole lines, of a stream or of a span of a file that is not packed.

A line begins at byte 0 and after each newline. Of 10 bytes, with lines that begin at 0, 3 and 8:

    a b | c d e f | g h      | is a newline
          [ 3 . 5 )          holds `cdef`, read to its end at 8
                [ 5 . . 10 ) holds `gh`: `cdef` began before
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.text.documents.document_rows import MAX_BATCH_ROWS, MAX_TEXT_BYTES
from streaming_ext.text.documents.files import SourceBytes
from streaming_ext.text.documents.streams import Stream

_NEWLINE = ord("\n")
_TAIL_BYTES = 2**16  # read at once to find the end of a line


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Some consecutive lines.

    Attributes:
        data: their bytes.
        starts, ends: of each line in `data`, without its newline: (lines,).
        first_line: number of the first one, from 0.
        offset: of `data` in the stream.
    """

    data: memoryview
    starts: Ints
    ends: Ints
    first_line: int
    offset: int

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def too_long(self) -> Ints:
        """Lines that no text is as long as; `data` may lack them."""
        return np.flatnonzero(self.ends - self.starts > MAX_TEXT_BYTES)


def line_blocks(stream: Stream, block_bytes: int) -> Iterator[LineBlock]:
    """All lines of a stream, in blocks of about `block_bytes`; a longer line is a block alone."""
    line = offset = 0
    for data, size in _complete_lines(stream, block_bytes):
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
        if not data.endswith(b"\n"):
            ends = np.append(ends, size)
        starts = np.concatenate([[0], ends[:-1] + 1])
        if not offset and not stream.start and data.startswith(codecs.BOM_UTF8):
            starts[0] = len(codecs.BOM_UTF8)
        for first in range(0, len(ends), MAX_BATCH_ROWS):
            chosen = slice(first, first + MAX_BATCH_ROWS)
            begin, end = int(starts[first]), int(ends[chosen][-1])
            yield LineBlock(
                memoryview(data)[begin:end],
                starts[chosen] - begin,
                ends[chosen] - begin,
                line + first,
                offset + begin,
            )
        line, offset = line + len(ends), offset + size


def _complete_lines(stream: Stream, block_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Blocks of lines and their size; of a line that is too long its size alone, in bytes."""
    held: list[bytes] = []  # of a line without an end yet, unless it is too long
    size = 0
    while data := stream.read(block_bytes):
        if size > MAX_TEXT_BYTES and (end := data.find(b"\n") + 1):
            yield b"", size + end
            data, size = data[end:], 0
        if end := data.rfind(b"\n") + 1:
            lines = b"".join([*held, memoryview(data)[:end]])
            held, size, data = [], 0, data[end:]
            yield lines, len(lines)
            del lines
        size += len(data)
        held = [] if size > MAX_TEXT_BYTES else [*held, data]
    if size:
        yield b"".join(held), size


def line_from(file: SourceBytes, at: int) -> int:
    """Where the first line begins that does so at a byte or later."""
    begin = at - 1
    while 0 <= begin < file.size:
        data = file.read(begin, min(begin + _TAIL_BYTES, file.size))
        if (newline := data.find(b"\n")) >= 0:
            return begin + newline + 1
        begin += len(data)
    return at and file.size
