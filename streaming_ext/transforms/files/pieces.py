"""Pieces of source files: what is fetched and read at once, and where reading can go on.

A worker has every so many-th piece. Of two files of 3 and 2 pieces, worker 1 of 2 has these:

    file 0: . 1 .      file 1: 0 .
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import SourceFormat, Span
from streaming_ext.text.fetch import fetch
from streaming_ext.text.fetch_piece import fetch_piece
from streaming_ext.text.formats import format_of
from streaming_ext.text.parts.cutting import cut_evenly
from streaming_ext.text.parts.looking import can_be_cut
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.local import kept_as_listed
from streaming_ext.transforms.block import Block

PIECE_BYTES: Final = 2**22


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What is read of files.

    Attributes:
        options: the text of a document.
        column: that holds it, where nothing else is asked for; None for whole records.
    """

    options: ReadOptions
    column: str | None

    def pieces_of(self, source: SourceFile, number: int, share: tuple[int, int]) -> Sequence[int]:
        """The pieces of a file that a worker has.

        Args:
            source: the file.
            number: of it, among all.
            share: of the worker.
        """
        own, workers = share
        return range((own - number) % workers, len(self._spans(source)), workers)

    def _format(self, source: SourceFile) -> SourceFormat:
        return format_of(source.url, self.options)

    def _spans(self, source: SourceFile) -> Sequence[Span | None]:
        if source.size <= PIECE_BYTES:
            return [None]
        cut = self.column is not None or self._format(source).cuts_records
        if cut and can_be_cut(source, self.options):
            return cut_evenly(source.size, PIECE_BYTES)
        return [None]

    def blocks(self, source: SourceFile, piece: int) -> Iterator[Block]:
        """The samples of a piece.

        Raises:
            SourceError: the file is damaged or changed; names it.
            StorageError: a server refuses, or does not answer.
        """
        span = self._spans(source)[piece]
        with self._here(source, span) as path:
            one = self._format(source)
            if self.column is None and one.has_records:
                for records in one.records(path, self.options, name=source.url, span=span):
                    yield Block(samples=records)
                return
            found = one.read(
                path, self.options, name=source.url, span=span, batch_bytes=PIECE_BYTES
            )
            name = self.column or self.options.columns[0]
            for batch in found:
                yield Block({name: batch.texts})

    @contextlib.contextmanager
    def _here(self, source: SourceFile, span: Span | None) -> Iterator[Path]:
        """Where the bytes of a piece lie, as long as they are read."""
        if source.local_path is not None:
            other = SourceError(
                f"{source.url}: changed since it was listed. Put it back, or start anew: a state "
                "of the old file does not go on in the new one."
            )
            with kept_as_listed(source, source.local_path, changed=other) as path:
                yield path
            return
        with tempfile.TemporaryDirectory(prefix="shardmill-") as name:
            if span is None:
                options = None if self.column is None else self.options
                path, _ = fetch(source, Path(name), options=options)
            else:
                path, _ = fetch_piece(source, Path(name), options=self.options, span=span)
            yield path
