"""The documents of a part: its spans, fetched and read one after another."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.errors import SourceError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.filters import FilterName
from streaming_ext.format.record import BadDocument, RowCounts, SpanRecord
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.columns import joined
from streaming_ext.text.documents.document_rows import BATCH_BYTES, MAX_BATCH_ROWS, DocumentBatch
from streaming_ext.text.fetch import came_unchecked, fetch, identify, remove_fetched
from streaming_ext.text.formats import format_of
from streaming_ext.text.parts import Part, SourceSpan

_AT_ONCE = 16  # small files: each takes one or two requests, which mostly wait


def fetch_part(
    part: Part,
    folder: Path,
    report: Callable[[int], None] = lambda done: None,
    *,
    options: ReadOptions,
    check: bool = False,
) -> tuple[list[Path], int]:
    """Fetch each span; return the local path of each, and the number of bytes fetched.

    Args:
        part: a part with remote sources.
        folder: a folder on scratch.
        report: called with the number of bytes that were fetched so far.
        options: the options with which the files will be read.
        check: True to compare each span with a hash or checksums; whole files are fetched then.

    Raises:
        SourceError: a file changed, is missing or cannot be checked.
        StorageError: see `fetch`.
    """
    one = partial(_fetch, folder=folder, options=options, check=check)
    if len(part.spans) == 1:
        path, fetched = one(part.spans[0], report=report)
        return [path], fetched
    paths, total, done = [], 0, 0
    found = mapped_ahead(one, part.spans, threads=_AT_ONCE)
    for source_span, (path, fetched) in zip(part.spans, found, strict=True):
        paths.append(path)
        total += fetched
        done += source_span.size
        report(done)
    return paths, total


def _fetch(
    source_span: SourceSpan,
    *,
    folder: Path,
    report: Callable[[int], None] = lambda done: None,
    options: ReadOptions,
    check: bool,
) -> tuple[Path, int]:
    source, span = source_span.source, source_span.span
    read = None if check and span is None else options
    path, fetched = fetch(source, folder, report, options=read, span=span)
    if check and came_unchecked(path):
        remove_fetched(path)
        raise SourceError(
            f"{source.url} cannot be checked: "
            + (
                "its server offers no hash, and it holds no checksums. Download it, or leave out "
                "--check-sources."
                if span is None
                else "it is read in parts, which hold no checksums. Pass --part-size "
                f"{source.size} or more, or leave out --check-sources."
            )
        )
    return path, fetched


class PartDocuments:
    """All documents of a part; rows are counted over all its spans, from 0.

    Attributes:
        part: the part.
        rows: the number of rows of each span that was read to its end.
        without_text: a message about each whole file that is not empty, but holds no text.
        spans: the record of each span that was read, if `pinned` was true.
    """

    def __init__(
        self,
        part: Part,
        paths: Sequence[Path | str],
        options: ReadOptions,
        *,
        pinned: bool = True,
    ) -> None:
        """Set up the reading of a part.

        Args:
            part: the part to read.
            paths: the local path of each span; the file holds at least the bytes that the span
                needs. Empty if the sources are local.
            options: the options for reading.
            pinned: True to record the identity of each span; if false, files may change.
        """
        self.part = part
        self.rows: list[int] = []
        self.without_text: list[str] = []
        self.spans: list[SpanRecord] = []
        self._paths = [Path(path) for path in paths or (one.source.url for one in part.spans)]
        self._options, self._pinned = options, pinned

    def whole_version(self) -> str | None:
        """Return the version of a whole local file, if the part is its first span."""
        source, span = self.part.spans[0].source, self.part.spans[0].span
        if span is None or span[0] or source.version is not None:
            return None
        return identify(source, Path(source.url)).version

    def locate(self, row: int) -> tuple[str, str]:
        """Describe a row of the part for people: its file, and its row in the span."""
        source_span, own = self._span_of(row)
        origin = "" if source_span.span is None else f" from byte {source_span.span[0]} on"
        return source_span.source.url, f"row {own}{origin}"

    def origins(
        self, rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Find the span of each row of the last batch, and the row in this span: (rows,) each."""
        starts = np.cumsum([0, *self.rows])
        spans = np.searchsorted(starts, rows, side="right") - 1
        spans = np.minimum(spans, len(self.part.spans) - 1)
        return spans, rows - starts[spans]

    def bad_of(self, batch: DocumentBatch) -> list[BadDocument]:
        """List the unreadable rows of a batch, with the file of each and the row in its span."""
        found = []
        for one in batch.bad:
            source_span, own = self._span_of(one.row)
            url = source_span.source.url
            found.append(BadDocument(file=url, row=own, location=one.location, reason=one.reason))
        return found

    def _span_of(self, row: int) -> tuple[SourceSpan, int]:
        (number,), (own,) = self.origins(np.array([row]))
        return self.part.spans[number], int(own)

    def batches(self) -> Iterator[DocumentBatch]:
        """Yield the documents in order; several small files share a batch.

        Raises:
            SourceError: a file is damaged; the message names it.
        """
        if len(self.part.spans) == 1:
            yield from self._read(0, 0)
            return
        total, done, row = max(1, self.part.size), 0, 0
        waiting: list[DocumentBatch] = []
        texts = rows = 0  # bytes of text, and rows, in `waiting`
        for number, source_span in enumerate(self.part.spans):
            for batch in self._read(number, row):
                waiting.append(batch)
                texts += batch.texts.nbytes
                rows += batch.num_rows
                if texts >= BATCH_BYTES or rows >= MAX_BATCH_ROWS:
                    yield self._joined(waiting, (done + batch.fraction * source_span.size) / total)
                    waiting, texts, rows = [], 0, 0
                del batch
            row += self.rows[-1]
            done += source_span.size
        if waiting:
            yield self._joined(waiting, 1.0)

    def _joined(self, batches: Sequence[DocumentBatch], fraction: float) -> DocumentBatch:
        """Join consecutive batches."""
        dropped: Counter[FilterName] = Counter()
        for batch in batches:
            dropped.update(batch.dropped)
        return DocumentBatch(
            np.concatenate([batch.rows for batch in batches]),
            pa.concat_arrays([batch.texts for batch in batches]),
            sum(batch.num_rows for batch in batches),
            min(1.0, fraction),
            np.concatenate([batch.positions for batch in batches]),
            tuple(one for batch in batches for one in batch.bad),
            dropped,
            tuple(
                joined(name, columns)
                for name, columns in zip(
                    self._options.kept,
                    zip(*(batch.values for batch in batches), strict=True),
                    strict=True,
                )
            ),
        )

    def _read(self, number: int, first_row: int) -> Iterator[DocumentBatch]:
        source, span = self.part.spans[number].source, self.part.spans[number].span
        path, options = self._paths[number], self._options
        before, identity = _state_of(path), None
        counts = RowCounts.total(())
        if self._pinned:
            if before and source.modified not in {None, before[2]}:
                raise SourceError(f"{source.url}: changed since the run began. Run again.")
            identity = identify(source, path, span=span, options=options)
        reads = format_of(source.url, options)
        for batch in reads.read(path, options, name=source.url, span=span):
            counts = RowCounts.total((counts, batch.counts))
            yield _moved(batch, first_row) if first_row else batch
            del batch  # free it before the next one is read, since it may be large
        self.rows.append(counts.rows)
        if span is None and source.size and counts.no_text:
            self.without_text.append(no_text(source.url, counts))
        if identity is not None:
            if before is None or _state_of(path) != before:
                raise SourceError(f"{source.url}: changed while it was read. Run again.")
            self.spans.append(SpanRecord(source=identity, span=span, rows=counts.rows))


def no_text(url: str, counts: RowCounts) -> str:
    """Return a message about a source in which no row holds a text."""
    return (
        f"{url}: no document in its {counts.rows:,} rows: {counts.left_out_text}. Name the text "
        "with --text-column, or leave the file out."
    )


def _moved(batch: DocumentBatch, rows: int) -> DocumentBatch:
    """Return a batch with `rows` added to its row numbers."""
    bad = tuple(replace(one, row=one.row + rows) for one in batch.bad)
    return replace(batch, rows=batch.rows + rows, bad=bad)


def _state_of(file: Path) -> tuple[int, int, int] | None:
    """Return a state that changes if a file is written to or replaced; None if it is missing."""
    try:
        state = file.stat()
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns
