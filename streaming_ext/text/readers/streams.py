"""What formats have alike whose files are read from their beginning to their end."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.compression import (
    PlainStream,
    Stream,
    codec_of,
    open_anywhere,
    open_here,
    whole_in_head,
)
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.objects import (
    Value,
    batches_of_values,
    check_fields,
    records_of_values,
)
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    Block,
    DocumentBatch,
    FileLook,
    Record,
    SourceBytes,
    SourceFormat,
    Span,
)

_LOOK_DOCUMENTS = 50


class StreamFormat(SourceFormat):
    """A format whose files cannot be entered in the middle: a file is one block."""

    @abstractmethod
    def batches(self, stream: PlainStream, rows: DocumentRows) -> Iterator[DocumentBatch]:
        """The documents of a file in order.

        Args:
            stream: the unpacked bytes of the file, from its beginning.
            rows: what makes batches of them.

        Raises:
            SourceError: the file is damaged; the message names the place.
            UsageError: the file holds no such text.
        """

    def read(
        self,
        path: Path,
        options: ReadOptions,
        *,
        name: str | None = None,
        span: Span | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.read`; a span is refused."""
        where = name or str(path)
        if span is not None:
            raise SourceError(f"{where}: a file of this format cannot be entered in the middle.")
        with open_here(path, name=where) as stream:
            size = path.stat().st_size
            rows = DocumentRows(options, where=where, size=size, batch_bytes=batch_bytes)
            yield from self.batches(stream, rows)

    def read_blocks(
        self, file: SourceBytes, options: ReadOptions, blocks: Sequence[int], *, batch_bytes: int
    ) -> Iterator[tuple[int, Iterator[DocumentBatch]]]:
        """See `SourceFormat.read_blocks`."""
        for block in blocks:
            rows = DocumentRows(options, where=file.name, size=file.size, batch_bytes=batch_bytes)
            with open_anywhere(file) as stream:
                yield block, self.batches(stream, rows)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`."""
        blocks = (Block(None, file.size),)
        return FileLook(blocks=blocks, plain=False, codec=codec_of(file.name))


class ObjectFormat(StreamFormat):
    """A format whose documents are objects that are decoded one by one."""

    has_records = True

    @abstractmethod
    def values(self, stream: Stream, where: str) -> Iterator[Value]:
        """The values of a file in order, each of which should be an object.

        Raises:
            SourceError: the file is damaged; the message names the place.
        """

    def batches(self, stream: PlainStream, rows: DocumentRows) -> Iterator[DocumentBatch]:
        """See `StreamFormat.batches`."""
        values = self.values(stream, rows.where)
        yield from batches_of_values(values, rows, fraction=lambda: stream.fraction)

    def records(
        self, path: Path, options: ReadOptions, *, name: str, span: Span | None = None
    ) -> Iterator[list[Record]]:
        """See `SourceFormat.records`."""
        with open_here(path, name=name) as stream:
            yield from records_of_values(self.values(stream, name), options, name=name)

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook:
        """See `SourceFormat.look`: the first documents name the fields."""
        with open_anywhere(file) as stream:
            found = whole_in_head(lambda head: self.values(head, file.name), stream)
            first = [one.value for one in islice(found, _LOOK_DOCUMENTS)]
        check_fields([one for one in first if isinstance(one, dict)], options, where=file.name)
        return super().look(file, options)
