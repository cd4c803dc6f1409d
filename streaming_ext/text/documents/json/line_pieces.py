"""The lines that begin in a piece of a file that is not packed.

A line begins at byte 0 and behind each newline. Of 10 bytes, with lines that begin at 0, 3 and 8:

    a b | c d e f | g h      | is a newline
          [ 3 . 5 )          holds `cdef`, read to its end at 8
                [ 5 . . 10 ) holds `gh`: `cdef` began before
"""

from streaming_ext.text.documents.source_format import SourceBytes, Span

_TAIL_BYTES = 2**16  # read at once of the line that goes on behind the end of the piece


class LinesOfPiece:
    """A stream of these lines, whole ones, read as they are asked for.

    Attributes:
        start: of the piece.
        origin: byte of the file that the stream begins with, once something is read of it.
    """

    def __init__(self, file: SourceBytes, span: Span, request_bytes: int) -> None:
        self._file, self._request = file, request_bytes
        self.start, self._end = span
        self.origin = 0
        self._at = max(self.start - 1, 0)  # a newline there makes a line begin at `start`
        self._skips = self.start > 0
        self._done = self.start >= self._end

    @property
    def fraction(self) -> float:
        """How much of the piece is read, in [0, 1]."""
        done = (self._at - self.start) / max(self._end - self.start, 1)
        return min(1.0, max(0.0, done))

    def read(self, size: int) -> bytes:
        """The next bytes; none behind the last line that begins in the piece."""
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
    """What must be read to know the lines of a piece and no others."""
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
