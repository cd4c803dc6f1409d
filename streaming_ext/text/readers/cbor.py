"""CBOR: a sequence of maps, or one array of maps; a document is a map."""

import io
from collections.abc import Iterator
from typing import Any, TypeAlias

from streaming_ext.base.errors import SourceError
from streaming_ext.text.documents.objects import MAX_DEPTH, MAX_ITEM_BYTES, Value
from streaming_ext.text.documents.source_format import ObjectFormat
from streaming_ext.text.documents.streams import EndOfHeadError, Stream, packed_suffixes

_BUFFER_BYTES = 2**18
_SELF_DESCRIBED = b"\xd9\xd9\xf7"  # a tag that a file may begin with
_ARRAY, _OPEN_ENDED, _BREAK = 0x80, 0x9F, 0xFF
Buffered: TypeAlias = "io.BufferedReader[Stream]"
# That cbor2 knows; these and all others are left as what they tag.
_TAGS = (*range(6), 25, *range(28, 38), 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)


class CborFormat(ObjectFormat):
    """Files of CBOR maps."""

    name = "cbor"
    suffixes = packed_suffixes(".cbor")

    def values(self, stream: Stream, where: str) -> Iterator[Value]:
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
        left, number = _items_of_array(file), 0
        try:
            while left != 0 and (first := file.peek(1)[:1]):
                if left == -1 and first[0] == _BREAK:
                    file.read(1)
                    left = 0
                    break
                number, begin = number + 1, file.tell()
                stream.allow(MAX_ITEM_BYTES)
                value = decoder.decode()
                yield Value(f"document {number}, byte {begin}", value, file.tell() - begin)
                del value  # it may be large
                left = left - 1 if left is not None and left > 0 else left
        except cbor2.CBORDecodeEOF as error:
            raise SourceError(_damaged(where, number, file, "cut short")) from error
        except (cbor2.CBORDecodeError, RecursionError) as error:
            if isinstance(error.__cause__, SourceError | EndOfHeadError):  # of the stream
                raise error.__cause__ from error
            raise SourceError(_damaged(where, number, file, f"no CBOR ({error})")) from error
        if left:
            raise SourceError(_damaged(where, number + 1, file, "cut short"))
        if left == 0 and file.peek(1):
            problem = "something stands behind the end of the array"
            raise SourceError(_damaged(where, number, file, problem))


def _items_of_array(file: Buffered) -> int | None:
    """How many items are to come of the one array that a file is, -1 for as many as there are.

    None for a sequence.
    """
    if file.peek(3).startswith(_SELF_DESCRIBED):
        file.read(3)
    first = file.peek(1)[:1]
    if not first or not _ARRAY <= first[0] <= _OPEN_ENDED:
        return None
    file.read(1)
    size = first[0] - _ARRAY
    if first[0] == _OPEN_ENDED:
        return -1
    return size if size < 24 else int.from_bytes(file.read(1 << (size - 24)))


def _damaged(where: str, number: int, file: Buffered, problem: str) -> str:
    return (
        f"{where}: document {number}, byte {file.tell()}: {problem}. Fetch the file again, or "
        "leave it out."
    )
