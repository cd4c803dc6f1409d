"""CBOR: a sequence of maps, or one array of maps; a document is a map."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.compression import Stream, pack, packed_suffixes
from streaming_ext.text.documents.objects import (
    MAX_DEPTH,
    TOO_DEEP,
    TOO_LONG,
    BadValueError,
    Value,
)
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import MAX_TEXT_BYTES
from streaming_ext.text.readers.streams import ObjectFormat

_CHUNK_BYTES = 2**20
_MOST_ITEM_BYTES = MAX_TEXT_BYTES + 2**20  # a text, and what stands beside it
_MOST_OPEN = 2**20  # levels that are followed to the end of an item that is not read
_SELF_DESCRIBED = b"\xd9\xd9\xf7"  # a tag that a file may begin with
_BYTES, _TEXT, _ARRAY, _MAP, _TAG = range(2, 7)  # major types
_OPEN_ENDED, _BREAK = 31, 0xFF
_UNTIL_BREAK = -1
# That cbor2 knows; these and all others are left as what they tag.
_TAGS = (*range(6), 25, *range(28, 38), 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)


class CborFormat(ObjectFormat):
    """Files of CBOR maps."""

    name = "cbor"
    suffixes = packed_suffixes(".cbor")

    def values(self, stream: Stream, where: str) -> Iterator[Value]:
        """See `ObjectFormat.values`."""
        items = CborItems(stream, where)
        for item in items:
            place = f"document {items.number}, byte {items.start}"
            if isinstance(item, BadValueError):
                yield Value(place, item)
            else:
                yield Value(place, _decoded(item), len(item))
            del item  # it may be large

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`."""
        import cbor2

        column = options.columns[0]
        pack(b"".join(cbor2.dumps({column: text.as_py()}) for text in texts), path, codec)


def _decoded(item: bytes) -> object:
    """What an item is, or what is wrong with it."""
    import cbor2

    def inner(value: Any, _immutable: bool) -> Any:
        return value

    try:
        return cbor2.loads(
            item,
            semantic_decoders=dict.fromkeys(_TAGS, inner),
            tag_hook=lambda tag, _immutable: tag.value,
        )
    except (cbor2.CBORDecodeError, RecursionError) as error:
        return BadValueError(f"no valid CBOR ({error.__cause__ or error})")


class CborItems:
    """Where the items of a sequence lie, or of the one array that a file is (RFC 8949).

    They are found without decoding them: one that is damaged inside, nested too deep or too long
    costs no other one.

    Attributes:
        number: of the item in hand, from 1.
        start: its first byte in the unpacked file.
    """

    def __init__(self, stream: Stream, where: str) -> None:
        self._stream, self._where = stream, where
        self._data = b""
        self._at = 0  # in `_data`
        self._before = 0  # bytes dropped before `_data`
        self._begin = 0  # of the item in hand in `_data`
        self._problem = ""  # why it is not kept
        self.number, self.start = 1, 0

    def __iter__(self) -> Iterator[bytes | BadValueError]:
        """The bytes of each item; in place of one that is not kept, why.

        Raises:
            SourceError: the file is damaged or cut short; names item and byte.
        """
        if self._has(3) and self._data.startswith(_SELF_DESCRIBED):
            self._at = 3
        left = None
        if self._has(1) and self._data[self._at] >> 5 == _ARRAY:
            left = self._head()[1]
        while left != 0 if left is not None else self._has(1):
            if left == _UNTIL_BREAK and self._byte() == _BREAK:
                self._at += 1
                break
            self._begin, self._problem = self._at, ""
            self.start = self._before + self._at
            self._pass_item()
            yield (
                BadValueError(self._problem)
                if self._problem
                else (self._data[self._begin : self._at])
            )
            self._begin = self._at
            self.number += 1
            if left is not None and left > 0:
                left -= 1
        if left is not None and self._has(1):
            raise self._damaged("something stands behind the end of the array")

    def _pass_item(self) -> None:
        waiting = [1]  # items to come, of what is open; the innermost last
        while waiting:
            if waiting[-1] == 0:
                waiting.pop()
            elif waiting[-1] == _UNTIL_BREAK and self._byte() == _BREAK:
                self._at += 1
                waiting.pop()
            else:
                if waiting[-1] > 0:
                    waiting[-1] -= 1
                kind, length = self._head()
                if kind in {_BYTES, _TEXT} and length != _UNTIL_BREAK:
                    self._skip(length)
                elif kind in {_BYTES, _TEXT, _ARRAY}:
                    waiting.append(length)
                elif kind == _MAP:
                    waiting.append(2 * length if length > 0 else length)
                elif kind == _TAG:
                    waiting.append(1)
                if len(waiting) - 1 > MAX_DEPTH:
                    self._problem = TOO_DEEP
                if len(waiting) > _MOST_OPEN:
                    raise self._damaged(f"values nested deeper than {_MOST_OPEN} levels")

    def _head(self) -> tuple[int, int]:
        """Major type and argument of the next head; `_UNTIL_BREAK` where it gives no length."""
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
        self._require(size)
        value = int.from_bytes(self._data[self._at : self._at + size])
        self._at += size
        return kind, value

    def _byte(self) -> int:
        self._require(1)
        return self._data[self._at]

    def _skip(self, count: int) -> None:
        if self._at + count - self._begin > _MOST_ITEM_BYTES:
            self._problem = self._problem or TOO_LONG
        while self._problem and count > len(self._data) - self._at:
            count -= len(self._data) - self._at
            self._at = len(self._data)
            self._require(1)
        self._require(count)
        self._at += count

    def _require(self, count: int) -> None:
        if not self._has(count):
            raise self._damaged("cut short")

    def _has(self, count: int) -> bool:
        """Whether so many bytes come; reads on, and drops what is not needed any more."""
        if len(self._data) - self._at >= count:
            return True
        if self._at + count - self._begin > _MOST_ITEM_BYTES:
            self._problem = self._problem or TOO_LONG
        keep = self._at if self._problem else self._begin
        pieces = [self._data[keep:]]
        have = len(self._data) - self._at
        while have < count and (data := self._stream.read(max(_CHUNK_BYTES, count - have))):
            pieces.append(data)
            have += len(data)
        self._data = b"".join(pieces)
        self._before, self._at = self._before + keep, self._at - keep
        self._begin -= keep
        return have >= count

    def _damaged(self, problem: str) -> SourceError:
        return SourceError(
            f"{self._where}: document {self.number}, byte {self._before + self._at}: "
            f"{problem}. Fetch the file again, or leave it out."
        )
