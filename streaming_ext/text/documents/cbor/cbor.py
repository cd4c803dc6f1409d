"""CBOR: a sequence of maps, or one array of maps; a document is a map."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.cbor.items import CborItems
from streaming_ext.text.documents.compression import (
    PlainStream,
    codec_of,
    open_anywhere,
    open_here,
    pack,
    packed_suffixes,
)
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.json.values import (
    TOO_LONG,
    BadValueError,
    batches_of_values,
    check_fields,
    require_object,
    sample_of,
)
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    Block,
    DocumentBatch,
    FileLook,
    SourceBytes,
    SourceFormat,
    Span,
)

_LOOK_DOCUMENTS = 50
_TAGS = (*range(6), 25, *range(28, 38), 100, 256, 258, 260, 261, 1004)  # left as what they tag


class CborFormat(SourceFormat):
    """Files of CBOR maps."""

    name = "cbor"
    suffixes = packed_suffixes(".cbor")

    def read(
        self,
        path: Path,
        options: ReadOptions,
        *,
        name: str | None = None,
        span: Span | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.read`; the message names document and byte."""
        where = name or str(path)
        if span is not None:
            raise SourceError(f"{where}: a CBOR file cannot be entered in the middle.")
        with open_here(path, name=where) as stream:
            size = path.stat().st_size
            rows = DocumentRows(options, where=where, size=size, batch_bytes=batch_bytes)
            yield from _batches(stream, rows)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: the first documents name the fields."""
        values = []
        with open_anywhere(file) as stream:
            for place, value in islice(_values(stream, file.name), _LOOK_DOCUMENTS):
                try:
                    values.append(require_object(value))
                except BadValueError as error:
                    raise SourceError(f"{file.name}: {place}: {error}.") from error
        check_fields(values, options, where=file.name)
        blocks = (Block(None, file.size),)
        return FileLook(blocks=blocks, plain=False, codec=codec_of(file.name))

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """See `SourceFormat.read_blocks`."""
        for block in blocks:
            rows = DocumentRows(options, where=file.name, size=file.size, batch_bytes=batch_bytes)
            with open_anywhere(file) as stream:
                yield block, _batches(stream, rows)

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`."""
        import cbor2

        pack(b"".join(cbor2.dumps(one) for one in sample_of(texts, options)), path, codec)


def _batches(stream: PlainStream, rows: DocumentRows) -> Iterator[DocumentBatch]:
    yield from batches_of_values(
        _values(stream, rows.where), rows, fraction=lambda: stream.fraction
    )


def _values(stream: PlainStream, where: str) -> Iterator[tuple[str, object]]:
    """The items with their places, or what is wrong with one."""
    items = CborItems(stream, where)
    for item in items:
        value: object
        if item is None:
            value = BadValueError(TOO_LONG)
        else:
            try:
                value = _decoded(item)
            except BadValueError as error:
                value = error
        del item
        yield f"document {items.number + 1}, byte {items.start}", value


def _decoded(item: bytes) -> object:
    import cbor2

    def inner(value: Any, _immutable: bool) -> Any:
        return value

    try:
        return cbor2.loads(item, semantic_decoders=dict.fromkeys(_TAGS, inner))
    except (cbor2.CBORDecodeError, RecursionError) as error:
        reason = str(error.__cause__ or error)
        raise BadValueError(f"no valid CBOR ({reason})") from error
