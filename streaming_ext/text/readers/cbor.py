"""CBOR: a sequence of maps, or one array of maps; a document is a map."""

import io
import math
from collections.abc import Iterator
from typing import Any, TypeAlias

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.files import Stream, packed_suffixes
from streaming_ext.text.documents.objects import MAX_DEPTH, MAX_ITEM_BYTES, Value
from streaming_ext.text.documents.source_format import ObjectFormat

_BUFFER_BYTES = 2**18
_SELF_DESCRIBED = b"\xd9\xd9\xf7"  # a tag that a file may begin with
_ARRAY, _OPEN_ENDED, _BREAK = 0x80, 0x9F, 0xFF
Buffered: TypeAlias = "io.BufferedReader[Stream]"
# Known to cbor2; these and all others are read as the value that they tag.
_TAGS = (*range(6), 25, *range(28, 38), 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)


class CborFormat(ObjectFormat):
    """Files of CBOR maps."""

    name = "cbor"
    suffixes = packed_suffixes(".cbor")

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[Value]:
        """See `ObjectFormat.values`."""
        import cbor2

        def inner(value: Any, _immutable: bool) -> Any:
            return value

        file = io.BufferedReader(stream, _BUFFER_BYTES)
        decoder = cbor2.CBORDecoder(
            file,
            tag_hook=lambda tag, _immutable: tag.value,
            semantic_decoders=dict.fromkeys(_TAGS, inner),
            str_errors="surrogateescape",  # refused as halves of surrogate pairs are
            max_depth=MAX_DEPTH,
        )
        number = 0
        left, is_open = _items_of_array(file)
        while left and (first := file.peek(1)[:1]):
            if is_open and first[0] == _BREAK:
                file.read(1)
                left = 0
                break
            number, begin = number + 1, file.tell()
            stream.allow(MAX_ITEM_BYTES)
            value = decoder.decode()
            yield Value(f"document {number}, byte {begin}", value, file.tell() - begin)
            del value  # it may be large
            left -= 1
        if left and (is_open or left < math.inf):
            raise EOFError("its array has no end")
        if not left and file.peek(1):
            raise ValueError("more bytes follow the end of the array")


def _items_of_array(file: Buffered) -> tuple[float, bool]:
    """The items of the array that a file consists of, and whether a break ends them.

    A sequence of items has no number either.
    """
    if file.peek(3).startswith(_SELF_DESCRIBED):
        file.read(3)
    first = file.peek(1)[:1]
    if not first or not _ARRAY <= first[0] <= _OPEN_ENDED:
        return math.inf, False
    file.read(1)
    size = first[0] - _ARRAY
    if first[0] == _OPEN_ENDED:
        return math.inf, True
    return size if size < 24 else int.from_bytes(file.read(1 << (size - 24))), False
