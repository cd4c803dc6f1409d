"""Looking into some of the source files: all that their footers tell, and rows of a few groups.

Local and remote files are read alike, in ranges: a footer is one request, a row group some more,
and no file is fetched whole.
"""

import io
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streaming_ext.errors import SourceError
from streaming_ext.text.documents.parquet import check_column
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.columns import SMALLEST_FILE, column_ranges, worth_it
from streaming_ext.text.sources.fetch import Reader, open_reader, read_footer

FOOTERS = 64  # looked into at most: they are cheap, and tell rows and sizes exactly
LENGTH_BYTES = 4  # that Parquet stores with a text
_THREADS = 8
_READ_BYTES = 2**18
_LEAST_DRAWS = 8  # of a row group
_BATCH_BYTES = 2**18  # of text, so that little is read beyond what is wanted
_READ_WHOLE_BYTES = 2**25  # a row group of so much text is read whole, to take rows from anywhere


@dataclass(frozen=True, kw_only=True, slots=True)
class Footer:
    """What the end of a file tells of all of it.

    Attributes:
        column_bytes: of the text column, not compressed, of each row group: (groups,).
        rows: of each row group: (groups,).
        fetched: bytes that a run would fetch of the file; 0 where it is local.
        codec: of the text column's pages.
    """

    source: SourceFile
    rows: tuple[int, ...]
    column_bytes: tuple[int, ...]
    fetched: int
    codec: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of one row group: from anywhere in it, or from its start where it is large.

    A long text is drawn as much more likely as it is longer, and may be drawn several times: most
    of a dataset's bytes are in few texts, which an even choice would miss.

    Attributes:
        texts: those that were drawn, nulls left out.
        draws: how often each was drawn, (texts,); None where all that was read is here.
        rows: how many were read, nulls among them.
        filled: how many of those hold a text that is not empty.
        stored: bytes of the column for a byte of text and of its length; below 1 where texts
            repeat and are stored once.
    """

    source: SourceFile
    group: int
    texts: pa.LargeStringArray
    draws: npt.NDArray[np.int64] | None
    rows: int
    filled: int
    stored: float

    @property
    def text_bytes(self) -> int:
        """Bytes of the texts."""
        offsets = text_buffers(self.texts)[1]
        return int(offsets[-1] - offsets[0])


class _Ranges(io.RawIOBase):
    """A remote file as Parquet readers want it: one that can be sought in."""

    def __init__(self, reader: Reader, size: int) -> None:
        self._reader, self._size, self._at = reader, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        data = self._reader.read(self._at, end) if end > self._at else b""
        self._at += len(data)
        return data


def look(
    sources: Sequence[SourceFile], column: str, *, seed: int, least: int
) -> tuple[list[Footer], int]:
    """The footers of some files, in a random order, and how many of those could not be read.

    Args:
        sources: all of them.
        column: the text column.
        seed: decides which.
        least: as many files at least, if there are.

    Raises:
        SourceError: none of them is a Parquet file.
        UsageError: one has no such column.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret
    chosen = rng.sample(list(sources), min(len(sources), max(least, FOOTERS)))

    def one(source: SourceFile) -> Footer | SourceError:
        try:
            return _footer(source, column)
        except SourceError as error:
            return error

    with ThreadPoolExecutor(_THREADS) as threads:
        found = list(threads.map(one, chosen))
    errors = [footer for footer in found if isinstance(footer, SourceError)]
    footers = [footer for footer in found if isinstance(footer, Footer)]
    if not footers:
        raise errors[0]
    return footers, len(errors)


def _footer(source: SourceFile, column: str) -> Footer:
    try:
        if source.remote:
            tail = read_footer(source)
            metadata = pq.read_metadata(pa.BufferReader(tail))
        else:
            tail, metadata = b"", pq.read_metadata(source.url)
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{source.url}: not a whole Parquet file.") from error
    check_column(schema, column, where=source.url)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [
        next(
            chunk
            for chunk in (group.column(index) for index in range(group.num_columns))
            if chunk.path_in_schema.partition(".")[0] == column
        )
        for group in groups
    ]
    return Footer(
        source=source,
        rows=tuple(group.num_rows for group in groups),
        column_bytes=tuple(chunk.total_uncompressed_size for chunk in chunks),
        fetched=_fetched(source, tail, column),
        codec=chunks[0].compression.lower() if chunks else "zstd",
    )


def _fetched(source: SourceFile, tail: bytes, column: str) -> int:
    """What `fetch` would bring of a file."""
    if not source.remote:
        return 0
    hashed = (source.version or "").startswith(("sha256:", "git:"))
    ranges = column_ranges(tail, column, source.size)
    if source.size < SMALLEST_FILE or ranges is None:
        return source.size
    if not worth_it(ranges, source.size, hashed=hashed):
        return source.size
    return sum(end - start for start, end in ranges)


def read_rows(
    footers: Sequence[Footer], column: str, *, groups: int, text_bytes: int, seed: int
) -> Iterator[Rows]:
    """Rows of some groups of each file.

    Args:
        footers: of the files to read.
        column: the text column.
        groups: of each file, chosen at random.
        text_bytes: to read of each group; more by part of a batch, less where it holds less.
        seed: decides which groups.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret

    def jobs() -> Iterator[tuple[Footer, list[int]]]:
        for footer in footers:
            filled = [number for number, rows in enumerate(footer.rows) if rows]
            yield footer, sorted(rng.sample(filled, min(groups, len(filled))))

    with ThreadPoolExecutor(_THREADS) as threads:
        work = [(footer, chosen, column, text_bytes, seed) for footer, chosen in jobs()]
        for found in threads.map(lambda job: _read(*job), work):
            yield from found


def _read(footer: Footer, groups: list[int], column: str, text_bytes: int, seed: int) -> list[Rows]:
    source, found = footer.source, []
    raw: io.RawIOBase | io.BufferedReader = (
        _Ranges(open_reader(source), source.size) if source.remote else Path(source.url).open("rb")  # noqa: SIM115 - closed below
    )
    try:
        with raw, pq.ParquetFile(raw, buffer_size=_READ_BYTES, pre_buffer=False) as file:
            for group in groups:
                rows_a_batch = _BATCH_BYTES * footer.rows[group] // (footer.column_bytes[group] + 1)
                batches = file.iter_batches(
                    batch_size=max(1, rows_a_batch),
                    row_groups=[group],
                    columns=[column],
                    use_threads=False,
                )
                whole = footer.column_bytes[group] <= _READ_WHOLE_BYTES
                texts, rows = _first_rows(batches, _READ_WHOLE_BYTES if whole else text_bytes)
                read = Rows(
                    source=source,
                    group=group,
                    texts=texts,
                    draws=None,
                    rows=rows,
                    filled=int((sizes_of(texts) > 0).sum()),
                    stored=_stored(texts, rows, footer, group),
                )
                found.append(_some(read, text_bytes, seed) if whole else read)
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise SourceError(f"{source.url}: cannot be read: {error}") from error
    return found


def _first_rows(
    batches: Iterator[pa.RecordBatch], text_bytes: int
) -> tuple[pa.LargeStringArray, int]:
    texts, rows, have = [], 0, 0
    for batch in batches:
        piece = batch.column(0).cast(pa.large_string()).drop_null()
        texts.append(piece)
        rows += batch.num_rows
        have += piece.nbytes
        if have >= text_bytes:
            break
    return pa.chunked_array(texts, pa.large_string()).combine_chunks(), rows


def sizes_of(texts: pa.LargeStringArray) -> npt.NDArray[np.float64]:
    """Bytes of each text: (texts,)."""
    return np.diff(text_buffers(texts)[1]).astype(np.float64)


def _stored(texts: pa.LargeStringArray, rows: int, footer: Footer, group: int) -> float:
    plain = float((sizes_of(texts) + LENGTH_BYTES).sum())
    all_differ = pc.count_distinct(texts).as_py() == len(texts)
    if not plain or (rows < footer.rows[group] and all_differ):
        return 1.0
    return footer.column_bytes[group] * rows / footer.rows[group] / plain


def _some(rows: Rows, text_bytes: int, seed: int) -> Rows:
    """About so much of the text: systematic sampling with probability proportional to size."""
    if rows.text_bytes <= text_bytes:
        return rows
    sizes = sizes_of(rows.texts) + LENGTH_BYTES
    rng = random.Random(f"{seed} {rows.source.name} {rows.group}")  # noqa: S311 - no secret
    order = np.array(rng.sample(range(len(sizes)), len(sizes)))
    ends = np.cumsum(sizes[order])
    of_a_draw = float((sizes**2).sum() / sizes.sum())
    count = max(_LEAST_DRAWS, round(text_bytes / of_a_draw))
    places = (rng.random() + np.arange(count)) * ends[-1] / count
    drawn = order[np.minimum(np.searchsorted(ends, places, side="right"), len(order) - 1)]
    chosen, draws = np.unique(drawn, return_counts=True)
    return replace(rows, texts=rows.texts.take(pa.array(chosen)), draws=draws)
