"""What formats have alike whose files are read from their beginning to their end."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.compression import PlainStream, open_anywhere, open_here
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import (
    BATCH_BYTES,
    DocumentBatch,
    SourceBytes,
    SourceFormat,
    Span,
)


class WholeFileFormat(SourceFormat):
    """A format whose files cannot be entered in the middle: a file is one block."""

    called: ClassVar[str]  # a file of it, in messages: "a tar"

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
            raise SourceError(f"{where}: {self.called} cannot be entered in the middle.")
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
