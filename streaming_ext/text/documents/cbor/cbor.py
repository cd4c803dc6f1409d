"""CBOR: a sequence of maps, or one array of maps; a document is a map."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, count, islice, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.cbor.items import CborItems, LargeSpan
from streaming_ext.text.documents.compression import (
    PlainStream,
    Stream,
    codec_of,
    open_anywhere,
    open_here,
    pack,
    packed_suffixes,
    whole_in_head,
)
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.json.records import records_of_values
from streaming_ext.text.documents.json.values import (
    TOO_DEEP,
    TOO_LONG,
    BadValueError,
    LargeText,
    batches_of_values,
    check_fields,
    require_object,
    sample_of,
)
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    Block,
    DocumentBatch,
    FileLook,
    Record,
    SourceBytes,
    Span,
)
from streaming_ext.text.documents.text_array import is_utf8
from streaming_ext.text.documents.whole_file import WholeFileFormat

_LOOK_DOCUMENTS = 50
# That cbor2 knows; these and all others are left as what they tag.
_TAGS = (*range(6), 25, *range(28, 38), 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
_FIRST_FREE_TAG = 2**63


class CborFormat(WholeFileFormat):
    """Files of CBOR maps."""

    name = "cbor"
    called = "a CBOR file"
    suffixes = packed_suffixes(".cbor")
    has_records = True

    def batches(self, stream: PlainStream, rows: DocumentRows) -> Iterator[DocumentBatch]:
        """See `WholeFileFormat.batches`; messages name document and byte."""
        values = cbor_values(stream, rows.where)
        yield from batches_of_values(values, rows, fraction=lambda: stream.fraction)

    def records(
        self, path: Path, options: ReadOptions, *, name: str, span: Span | None = None
    ) -> Iterator[list[Record]]:
        """See `SourceFormat.records`."""
        with open_here(path, name=name) as stream:
            found = ((place, _with_texts(value)) for place, value in cbor_values(stream, name))
            yield from records_of_values(found, options, name=name)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: the first documents name the fields."""
        values = []
        with open_anywhere(file) as stream:
            found = whole_in_head(partial(cbor_values, where=file.name), stream)
            first = list(islice(found, _LOOK_DOCUMENTS))
        for place, value in first:
            try:
                values.append(require_object(value))
            except BadValueError as error:
                raise SourceError(f"{file.name}: {place}: {error}.") from error
        check_fields(values, options, where=file.name)
        blocks = (Block(None, file.size),)
        return FileLook(blocks=blocks, plain=False, codec=codec_of(file.name))

    def write(
        self, path: Path, texts: pa.ChunkedArray, options: ReadOptions, *, codec: str
    ) -> None:
        """See `SourceFormat.write`."""
        import cbor2

        pack(b"".join(cbor2.dumps(one) for one in sample_of(texts, options)), path, codec)


def _with_texts(value: object) -> object:
    """A value whose large texts are texts too."""
    if not isinstance(value, dict):
        return value
    return {key: one.decode() if isinstance(one, LargeText) else one for key, one in value.items()}


def cbor_values(stream: Stream, where: str) -> Iterator[tuple[str, object]]:
    """The items with their places, or what is wrong with one."""
    items = CborItems(stream, where)
    for item in items:
        value: object
        if item is None:
            value = BadValueError(TOO_DEEP if items.too_deep else TOO_LONG)
        else:
            try:
                value = _decoded(item, items.large)
            except BadValueError as error:
                value = error
        del item  # it may be large
        yield f"document {items.number + 1}, byte {items.start}", value


def _decoded(item: bytes, large: Sequence[LargeSpan]) -> object:
    """What an item is; its large texts as bytes, since as characters they take up to four times."""
    import cbor2

    def inner(value: Any, _immutable: bool) -> Any:
        return value

    decoders: dict[int, Callable[[Any, bool], Any]] = dict.fromkeys(_TAGS, inner)
    if large:
        texts = [LargeText(memoryview(item)[span.start : span.end]) for span in large]
        if not all(map(is_utf8, texts)):
            raise BadValueError("no valid CBOR (a text is no valid UTF-8)")
        item, tag = _without_texts(item, large)
        decoders[tag] = lambda number, _immutable: texts[number]
    try:
        return cbor2.loads(
            item, semantic_decoders=decoders, tag_hook=lambda tag, _immutable: tag.value
        )
    except (cbor2.CBORDecodeError, RecursionError) as error:
        reason = str(error.__cause__ or error)
        raise BadValueError(f"no valid CBOR ({reason})") from error


def _without_texts(item: bytes, large: Sequence[LargeSpan]) -> tuple[bytes, int]:
    """An item with the number of each large text in its place, below a tag that it has nowhere."""
    import cbor2

    ends = [0, *(span.end for span in large)]
    heads = [*(span.head for span in large), len(item)]
    between = [item[end:head] for end, head in zip(ends, heads, strict=True)]
    tag = next(
        tag
        for tag in count(_FIRST_FREE_TAG)
        if not any(tag.to_bytes(8) in piece for piece in between)
    )
    numbers = [cbor2.dumps(cbor2.CBORTag(tag, number)) for number in range(len(large))]
    return b"".join(chain.from_iterable(zip_longest(between, numbers, fillvalue=b""))), tag
