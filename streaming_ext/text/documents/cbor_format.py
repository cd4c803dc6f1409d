"""CBOR: a sequence of maps, or one array of maps; a document is a map."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming_ext.text.documents.cbor_items import CborItems
from streaming_ext.text.documents.compression import Stream, pack, packed_suffixes
from streaming_ext.text.documents.objects import BadValueError, Value
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.streams import ObjectFormat

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
