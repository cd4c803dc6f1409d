"""CBOR: a sequence of maps, or one array of maps that is read at once; a document is a map."""

import io
from collections.abc import Iterator
from typing import Any

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.files import Stream, packed_suffixes
from streaming_ext.text.documents.objects import MAX_DEPTH, MAX_ITEM_BYTES, ParsedValue
from streaming_ext.text.documents.source_format import ObjectFormat

_BUFFER_BYTES = 2**18
# Tags that cbor2 decodes itself. The value inside is read instead, as for all tags but 25, 28, 29
# and 256: with these, a value stands for an earlier one.
_TAGS = (*range(6), *range(30, 38), 52, 54, 100, 258, 260, 261, 1004, 43000, 55799)


class CborFormat(ObjectFormat):
    """Files of CBOR maps."""

    name = "cbor"
    suffixes = packed_suffixes(".cbor")

    def values(self, stream: Stream, options: ReadOptions) -> Iterator[ParsedValue]:
        """See `ObjectFormat.values`."""
        import cbor2

        def inner(value: Any, _immutable: bool) -> Any:
            return value

        file = io.BufferedReader(stream, _BUFFER_BYTES)
        decoder = cbor2.CBORDecoder(
            file,
            tag_hook=lambda tag, _immutable: tag.value,
            semantic_decoders=dict.fromkeys(_TAGS, inner),
            str_errors="surrogateescape",  # refused later, like halves of surrogate pairs
            max_depth=MAX_DEPTH,
        )
        number, end = 0, 0
        while file.peek(1):
            stream.allow(MAX_ITEM_BYTES)
            value = decoder.decode()
            begin, end = end, file.tell()
            is_array = not begin and isinstance(value, list)
            items = value if is_array else [value]
            del value  # it may be large
            for number, item in enumerate(items, number + 1):  # noqa: B020  (`number` counts on)
                yield ParsedValue(f"document {number}", item, (end - begin) // len(items))
            if is_array and file.peek(1):
                raise ValueError("more bytes follow the end of the array")
