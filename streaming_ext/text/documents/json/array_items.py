"""Where the values of an array of JSON lie, found without parsing them: by brackets and strings.

What is wrong inside a value costs no other one, and memory holds some values at a time.
"""

import re
from collections.abc import Iterator

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.json.item_window import ItemWindow
from streaming_ext.text.documents.json.values import BadValueError, object_of
from streaming_ext.text.documents.source_format import MAX_TEXT_BYTES

_CHUNK_BYTES = 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SPACE = re.compile(rb"[ \t\r\n]*")
_STRUCTURE = re.compile(rb'["\[\]{}]')
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_SCALAR = re.compile(rb'[^ \t\r\n,\[\]{}"]*')


class ArrayItems(ItemWindow):
    """The values of the one array that a stream is."""

    def __iter__(self) -> Iterator[bytes | None]:
        """The bytes of each value; None for one that is too long to be kept.

        Raises:
            SourceError: the file is no array, damaged or cut short; names document and byte.
        """
        while len(self._data) < len(_BYTE_ORDER_MARK) and self._more():
            pass
        self._at = len(_BYTE_ORDER_MARK) if self._data.startswith(_BYTE_ORDER_MARK) else 0
        self._before -= self._at  # a byte order mark is not counted
        self._next(b"[")
        found = self._peek()
        while found != b"]":
            if found in {b"", b",", b"}"}:
                raise self._refused("no valid JSON (Expecting value)")
            yield self._value()
            self._kept = None
            self.number += 1
            found = self._next(b",", b"]")
            if found == b",":
                found = self._peek()
                if found == b"]":
                    raise self._refused("no valid JSON (Expecting value)")
        if self.number == 0:
            self._at += 1
        if self._peek():
            raise self._refused("something stands behind the end of the array")

    def _peek(self) -> bytes:
        """The next byte that is no white space; none at the end."""
        while True:
            self._at = _SPACE.match(self._data, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._data) or not self._more():
                return self._data[self._at : self._at + 1]

    def _next(self, *expected: bytes) -> bytes:
        found = self._peek()
        if found not in expected:
            got = self._data[self._at : self._at + 4].decode(errors="replace")[:1]
            words = " or ".join(repr(one.decode()) for one in expected)
            raise self._refused(f"expected {words}, got {got or 'the end of the file'!r}")
        self._at += 1
        return found

    def _value(self) -> bytes | None:
        self.start, self._kept = self._before + self._at, self._at
        depth, in_string = 0, False
        while True:
            if in_string:
                self._at = _IN_STRING.match(self._data, self._at).end()  # type: ignore[union-attr]
                in_string = self._data[self._at : self._at + 1] != b'"'
                if in_string:
                    self._require_more()
                    continue
                self._at += 1
            elif depth or self._data[self._at : self._at + 1] in {b'"', b"[", b"{"}:
                found = _STRUCTURE.search(self._data, self._at)
                if found is None:
                    self._at = len(self._data)
                    self._require_more()
                    continue
                self._at = found.end()
                in_string = found[0] == b'"'
                depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(found[0], 0)
                if in_string:
                    continue
            else:
                self._at = _SCALAR.match(self._data, self._at).end()  # type: ignore[union-attr]
                if self._at == len(self._data) and self._more():
                    continue
            if not depth:
                return self._taken()

    def _more(self) -> bool:
        """Read at least as much again as is kept, and drop what is used."""
        keep = self._at if self._kept is None else self._kept
        if self._at - keep > MAX_TEXT_BYTES:
            keep, self._kept = self._at, None
        rest = self._data[keep:]
        data = self._stream.read(max(_CHUNK_BYTES, len(rest)))
        self._data = rest + data if rest else data
        self._before, self._at = self._before + keep, self._at - keep
        if self._kept is not None:
            self._kept = 0
        return bool(data)

    def _require_more(self) -> None:
        if self._more():
            return
        problem, byte = "cut short", self._at
        if self._kept is not None:
            try:
                object_of(self._data[self._kept :])
            except BadValueError as error:
                problem, byte = str(error), self._kept + error.byte
        raise self._refused(problem, byte)

    def _refused(self, problem: str, at: int | None = None) -> SourceError:
        byte = self._before + (self._at if at is None else at)
        return SourceError(
            f"{self._where}: document {self.number + 1}, byte {byte}: {problem}. Mend it, or leave "
            "the file out."
        )
