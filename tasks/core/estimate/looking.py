"""Looking into some of the source files: all that their footers tell, and rows of a few blocks.

Local and remote files are read alike, in ranges: a look is a request or two, a block some more,
and no file is fetched whole.
"""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.errors import SourceError, UsageError
from streaming_ext.text.documents.formats import format_of
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.documents.source_format import LENGTH_BYTES, DocumentBatch, FileLook
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.ranges import worth_fetching
from streaming_ext.text.sources.source_bytes import SourceFileBytes

FOOTERS = 64  # looked into at most: they are cheap, and tell rows and sizes exactly
_THREADS = 8
_LEAST_DRAWS = 8  # of a block
_BATCH_BYTES = 2**18  # of text, so that little is read beyond what is wanted
_READ_WHOLE_BYTES = 2**25  # a block of so much text is read whole, to take rows from anywhere


@dataclass(frozen=True, kw_only=True, slots=True)
class Footer:
    """What a look into a file tells of all of it.

    Attributes:
        rows: of each block, None where only reading would tell: (blocks,).
        column_bytes: size of each block: (blocks,).
        plain: those sizes are of the texts and their lengths, not of pieces of the file.
        fetched: bytes that a run would fetch of the file; 0 where it is local.
        codec: how the text is packed.
    """

    source: SourceFile
    rows: tuple[int | None, ...]
    column_bytes: tuple[int, ...]
    plain: bool
    fetched: int
    codec: str

    @property
    def num_rows(self) -> int | None:
        """Rows of all blocks, where they are known."""
        known = [rows for rows in self.rows if rows is not None]
        return sum(known) if len(known) == len(self.rows) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of one block: from anywhere in it, or from its start where it is large.

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


def look(
    sources: Sequence[SourceFile], options: ReadOptions, *, seed: int, least: int
) -> tuple[list[Footer], int]:
    """The footers of some files, in a random order, and how many of those could not be read.

    Args:
        sources: all of them.
        options: which text to read.
        seed: decides which.
        least: as many files at least, if there are.

    Raises:
        SourceError: none of them is a whole file of its format.
        UsageError: one has no such text.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret
    chosen = rng.sample(list(sources), min(len(sources), max(least, FOOTERS)))

    def one(source: SourceFile) -> Footer | SourceError:
        try:
            return _footer(source, options)
        except SourceError as error:
            return error

    with ThreadPoolExecutor(_THREADS) as threads:
        found = list(threads.map(one, chosen))
    errors = [footer for footer in found if isinstance(footer, SourceError)]
    footers = [footer for footer in found if isinstance(footer, Footer)]
    if not footers:
        raise errors[0]
    return footers, len(errors)


def _footer(source: SourceFile, options: ReadOptions) -> Footer:
    reads = format_of(source.url, options)
    look = reads.look(SourceFileBytes(source), options)
    if look is None:
        raise UsageError(f"{source.url}: files of the format {reads.name} cannot be looked into.")
    return Footer(
        source=source,
        rows=tuple(block.rows for block in look.blocks),
        column_bytes=tuple(block.size for block in look.blocks),
        plain=look.plain,
        fetched=_fetched(source, look),
        codec=look.codec,
    )


def _fetched(source: SourceFile, look: FileLook) -> int:
    """What `fetch` would bring of a file."""
    if not source.remote:
        return 0
    ranges = worth_fetching(source, look.needed)
    return source.size if ranges is None else sum(end - start for start, end in ranges)


def read_rows(
    footers: Sequence[Footer], options: ReadOptions, *, groups: int, text_bytes: int, seed: int
) -> Iterator[Rows]:
    """Rows of some groups of each file.

    Args:
        footers: of the files to read.
        options: which text to read.
        groups: of each file, chosen at random.
        text_bytes: to read of each group; more by part of a batch, less where it holds less.
        seed: decides which groups.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret

    def jobs() -> Iterator[tuple[Footer, list[int]]]:
        for footer in footers:
            filled = [number for number, rows in enumerate(footer.rows) if rows != 0]
            yield footer, sorted(rng.sample(filled, min(groups, len(filled))))

    with ThreadPoolExecutor(_THREADS) as threads:
        work = [(footer, chosen, options, text_bytes, seed) for footer, chosen in jobs()]
        for found in threads.map(lambda job: _read(*job), work):
            yield from found


def _read(
    footer: Footer, blocks: list[int], options: ReadOptions, text_bytes: int, seed: int
) -> list[Rows]:
    source, found = footer.source, []
    for block, batches in format_of(source.url, options).read_blocks(
        SourceFileBytes(source), options, blocks, batch_bytes=_BATCH_BYTES
    ):
        whole = footer.column_bytes[block] <= _READ_WHOLE_BYTES
        texts, rows, fraction = _first_rows(batches, _READ_WHOLE_BYTES if whole else text_bytes)
        read = Rows(
            source=source,
            group=block,
            texts=texts,
            draws=None,
            rows=rows,
            filled=int((sizes_of(texts) > 0).sum()),
            stored=_stored(texts, fraction, footer, block, whole=not options.filters.given()),
        )
        found.append(_some(read, text_bytes, seed) if whole else read)
    return found


def _first_rows(
    batches: Iterator[DocumentBatch], text_bytes: int
) -> tuple[pa.LargeStringArray, int, float]:
    """Texts, rows, and which share of the block they are."""
    texts, rows, have, fraction = [], 0, 0, 1.0
    for batch in batches:
        texts.append(batch.texts)
        rows += batch.num_rows
        have += batch.texts.nbytes
        if have >= text_bytes:
            fraction = batch.fraction
            break
    return pa.chunked_array(texts, pa.large_string()).combine_chunks(), rows, fraction


def sizes_of(texts: pa.LargeStringArray) -> npt.NDArray[np.float64]:
    """Bytes of each text: (texts,)."""
    return np.diff(text_buffers(texts)[1]).astype(np.float64)


def _stored(
    texts: pa.LargeStringArray, fraction: float, footer: Footer, group: int, *, whole: bool
) -> float:
    """Bytes in the file for a byte of text that stays; `whole` says that all of it does."""
    plain = float((sizes_of(texts) + LENGTH_BYTES).sum())
    if not plain:
        return 1.0
    if whole and footer.plain and fraction < 1 and pc.count_distinct(texts).as_py() == len(texts):
        return 1.0  # what does not repeat is stored as it is
    return footer.column_bytes[group] * fraction / plain


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
