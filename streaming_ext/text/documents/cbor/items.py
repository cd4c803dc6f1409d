"""Where the items of a CBOR stream lie, found without decoding them (RFC 8949).

An item that is damaged inside, or longer than any text may be, so costs no other one.
"""

from collections.abc import Iterator
from typing import NamedTuple

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.compression import Stream
from streaming_ext.text.documents.json.item_window import ItemWindow
from streaming_ext.text.documents.json.values import LARGE_TEXT_BYTES
from streaming_ext.text.documents.source_format import MAX_TEXT_BYTES

_CHUNK_BYTES = 2**20
_MOST_ITEM_BYTES = MAX_TEXT_BYTES + 2**20  # a text, and what stands beside it
_MOST_DEPTH = 400  # of a document that is read, as cbor2 has it
_MOST_OPEN = 2**20  # that are followed to the end of a document that is not read
_SELF_DESCRIBED = b"\xd9\xd9\xf7"  # a tag that a file may begin with
_BYTES, _TEXT, _ARRAY, _MAP, _TAG, _OTHER = range(2, 8)  # major types
_OPEN_ENDED, _BREAK = 31, 0xFF
_UNTIL_BREAK = -1


class LargeSpan(NamedTuple):
    """Where a large text lies in an item: its head, and its own bytes [start, end)."""

    head: int
    start: int
    end: int


class CborItems(ItemWindow):
    """The items of a sequence, or of the one array that a file is.

    Attributes:
        large: the large texts of the item in hand, in order.
        too_deep: its values are nested deeper than is read.
    """

    def __init__(self, stream: Stream, where: str) -> None:
        super().__init__(stream, where)
        self.large: list[LargeSpan] = []
        self.too_deep = False

    def __iter__(self) -> Iterator[bytes | None]:
        """The bytes of each item; None for one that is too long or too deep to be kept.

        Raises:
            SourceError: the file is damaged or cut short; names item and byte.
        """
        if self._has(3) and self._data[self._at :].startswith(_SELF_DESCRIBED):
            self._at += 3
        left = None
        if self._has(1) and self._data[self._at] >> 5 == _ARRAY:
            left = self._head()[1]
        while left != 0 if left is not None else self._has(1):
            if left == _UNTIL_BREAK and self._byte() == _BREAK:
                self._at += 1
                break
            yield self._item()
            self.number += 1
            if left is not None and left > 0:
                left -= 1
        if left is not None and self._has(1):
            raise self._damaged("something stands behind the end of the array")

    def _item(self) -> bytes | None:
        self.start, self._kept = self._before + self._at, self._at
        self.large, self.too_deep = [], False
        waiting = [1]  # items to come, of what is open; the innermost last
        in_string = 0  # depth of a text that comes in pieces
        while waiting:
            if waiting[-1] == 0:
                waiting.pop()
            elif waiting[-1] == _UNTIL_BREAK and self._byte() == _BREAK:
                self._at += 1
                waiting.pop()
            else:
                if waiting[-1] > 0:
                    waiting[-1] -= 1
                in_string = in_string if len(waiting) >= in_string else 0
                head = self._at - (self._kept or 0)
                kind, length = self._head()
                if kind in {_BYTES, _TEXT} and length != _UNTIL_BREAK:
                    begin = self._at - (self._kept or 0)
                    self._skip(length)
                    self._note(kind, LargeSpan(head, begin, begin + length), in_string)
                elif kind in {_BYTES, _TEXT, _ARRAY}:
                    waiting.append(length)
                    in_string = in_string or (len(waiting) if kind != _ARRAY else 0)
                elif kind == _MAP:
                    waiting.append(2 * length if length > 0 else length)
                elif kind == _TAG:
                    waiting.append(1)
                if len(waiting) - 1 > _MOST_DEPTH:
                    self._kept, self.too_deep = None, True
                    if len(waiting) > _MOST_OPEN:
                        raise self._damaged(f"values nested deeper than {_MOST_OPEN} levels")
        return self._taken()

    def _note(self, kind: int, span: LargeSpan, in_string: int) -> None:
        if kind == _TEXT and span.end - span.start > LARGE_TEXT_BYTES and not in_string:
            self.large.append(span)

    def _head(self) -> tuple[int, int]:
        """Major type and argument of the next head; `_UNTIL_BREAK` where no length is told."""
        first = self._byte()
        kind, info = first >> 5, first & 31
        self._at += 1
        if info < 24:
            return kind, info
        if info == _OPEN_ENDED and kind in {_BYTES, _TEXT, _ARRAY, _MAP}:
            return kind, _UNTIL_BREAK
        if info > 27:
            raise self._damaged(f"no CBOR (byte 0x{first:02x})")
        size = 1 << (info - 24)
        if not self._has(size):
            raise self._damaged("cut short")
        value = int.from_bytes(self._data[self._at : self._at + size])
        self._at += size
        return kind, value

    def _byte(self) -> int:
        if not self._has(1):
            raise self._damaged("cut short")
        return self._data[self._at]

    def _skip(self, count: int) -> None:
        if self._kept is not None and self._at - self._kept + count <= _MOST_ITEM_BYTES:
            if not self._has(count):
                raise self._damaged("cut short")
        else:
            self._kept = None
        while count > len(self._data) - self._at:
            count -= len(self._data) - self._at
            self._at = len(self._data)
            if not self._has(1):
                raise self._damaged("cut short")
        self._at += count

    def _has(self, count: int) -> bool:
        """Whether so many bytes come; reads on, and drops what is not needed any more."""
        if len(self._data) - self._at >= count:
            return True
        keep = self._at if self._kept is None else self._kept
        if self._at + count - keep > _MOST_ITEM_BYTES:
            keep, self._kept = self._at, None
        pieces = [self._data[keep:]]
        have = len(self._data) - self._at
        while have < count and (data := self._stream.read(max(_CHUNK_BYTES, count - have))):
            pieces.append(data)
            have += len(data)
        self._data = b"".join(pieces)
        self._before, self._at = self._before + keep, self._at - keep
        if self._kept is not None:
            self._kept = 0
        return have >= count

    def _damaged(self, problem: str) -> SourceError:
        return SourceError(
            f"{self._where}: document {self.number + 1}, byte {self._before + self._at}: "
            f"{problem}. Fetch the file again, or leave it out."
        )
