"""Texts of some source files, tokenized and written as a run would: by the real workers."""

import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.filters import NO_FILTERS
from streaming_ext.format.layout import record_path
from streaming_ext.format.spec import DatasetSpec, ReadOptions
from streaming_ext.store import LocalStorage
from streaming_ext.text.documents.source_format import LENGTH_BYTES, FileLook
from streaming_ext.text.formats import format_of
from streaming_ext.text.parts.part import Part, SourceSpan
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.ranges import worth_fetching
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.estimate.config import EstimateConfig
from tasks.core.workers.move_part import PackedPart, WriteJob, WrittenPart
from tasks.core.workers.pool import WorkerPool
from tasks.core.workers.tokenize_part import PrepareJob, TokenizeJob

COUNTS: Final = np.dtype(
    [(name, float) for name in ("source_bytes", "documents", "text_bytes", "tokens", "shard_bytes")]
)
_THREADS = 8
_BLOCKS = 16  # to read over all files, and two of each file, if there are
_BATCH_BYTES = 2**18  # of text, so that little is read beyond what is wanted


@dataclass(frozen=True, kw_only=True, slots=True)
class LookedInto:
    """A source file of the sample, and what a look into it tells."""

    source: SourceFile
    look: FileLook

    @property
    def size(self) -> int:
        """Of all blocks."""
        return sum(block.size for block in self.look.blocks)

    @property
    def rows(self) -> int | None:
        """Of all blocks; None where only reading would tell."""
        known = [block.rows for block in self.look.blocks if block.rows is not None]
        return sum(known) if len(known) == len(self.look.blocks) else None

    @property
    def fetched(self) -> int:
        """Bytes that a run fetches of the file; 0 where it is local."""
        if not self.source.remote:
            return 0
        ranges = worth_fetching(self.source, self.look.needed)
        return self.source.size if ranges is None else sum(end - start for start, end in ranges)


@dataclass(frozen=True, kw_only=True, slots=True)
class Texts:
    """Texts from the start of a block.

    Attributes:
        rows: that were read for them, nulls among them.
        source_bytes: of the file that stand for them.
        seconds: of a processor, that reading took.
    """

    file: LookedInto
    texts: pa.ChunkedArray
    rows: int
    source_bytes: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What became of the texts.

    Attributes:
        counts: of each of them, by the names of `COUNTS`.
        rate: text a worker does while all of them work, in bytes a second.
        table_bytes: of the tables of documents, for a token.
    """

    counts: npt.NDArray[np.void]
    rate: float
    table_bytes: float


def look_into(
    sources: Sequence[SourceFile], options: ReadOptions, *, files: int, seed: int
) -> tuple[list[LookedInto], int]:
    """Some of the files, drawn at random, and how many of those could not be read.

    Raises:
        SourceError: none of them is a whole file of its format.
        UsageError: one has no such text.
    """

    def look(source: SourceFile) -> LookedInto | SourceError:
        reads = format_of(source.url, options)
        try:
            found = reads.look(SourceFileBytes(source), options)
        except SourceError as error:
            return error
        if found is None:
            raise UsageError(f"{source.url}: `plan` cannot read files of the format {reads.name}.")
        return LookedInto(source=source, look=found)

    rng = random.Random(seed)  # noqa: S311 - no secret
    drawn = rng.sample(list(sources), min(len(sources), files))
    with ThreadPoolExecutor(_THREADS) as threads:
        found = list(threads.map(look, drawn))
    errors = [each for each in found if isinstance(each, SourceError)]
    if len(errors) == len(found):
        raise errors[0]
    return [each for each in found if isinstance(each, LookedInto)], len(errors)


def read_texts(files: Sequence[LookedInto], config: EstimateConfig) -> list[Texts]:
    """Texts of some blocks of each file, drawn at random; all there are where they are few."""
    whole = sum(file.size for file in files) <= config.sample_size
    blocks = max(2, -(-_BLOCKS // len(files)))
    most = None if whole else config.sample_size // (len(files) * blocks)

    def read(file: LookedInto) -> list[Texts]:
        rng = random.Random(f"{config.sample_seed} {file.source.name}")  # noqa: S311 - no secret
        drawn = [number for number, block in enumerate(file.look.blocks) if block.rows != 0]
        if not whole:
            drawn = sorted(rng.sample(drawn, min(blocks, len(drawn))))
        return list(_read(file, drawn, config.read_options, most))

    with ThreadPoolExecutor(_THREADS) as threads:
        return [texts for found in threads.map(read, files) for texts in found]


def _read(
    file: LookedInto, blocks: Sequence[int], options: ReadOptions, most: int | None
) -> Iterator[Texts]:
    """Texts of blocks; of each as many from its start as have `most` bytes."""
    reads, source = format_of(file.source.url, options), SourceFileBytes(file.source)
    for block in (file.look.blocks[number] for number in blocks):
        chunks, rows, text_bytes, fraction = [], 0, 0, 1.0
        began = time.thread_time()
        for batch in reads.read_from(source, options, span=block.span, batch_bytes=_BATCH_BYTES):
            chunks.append(batch.texts)
            rows += batch.num_rows
            text_bytes += batch.texts.nbytes
            if most is not None and text_bytes >= most:
                fraction = batch.fraction
                break
        texts = pa.chunked_array(chunks, pa.large_string())
        seconds = time.thread_time() - began
        size = block.size * fraction
        plain = fraction < 1 and file.look.plain and not options.filters.given()
        if plain and pc.count_distinct(texts).as_py() == len(texts):
            # These texts are stored as they are, and rows differ in size: bytes say more.
            size = pc.sum(pc.binary_length(texts)).as_py() + LENGTH_BYTES * rows
        size *= file.source.size / max(file.size, 1)
        yield Texts(file=file, texts=texts, rows=rows, source_bytes=size, seconds=seconds)


def work_on(
    sample: Sequence[Texts],
    *,
    config: EstimateConfig,
    tokenizer: Tokenizer,
    spec: DatasetSpec,
    folder: Path,
) -> Sample:
    """Tokenize and write texts on as many workers as the run has, or as this host has cores.

    Each worker's first part is not timed: engines remember words, which they first have to meet.
    If there are too few parts for that, they are done again.

    Args:
        sample: texts of the sources.
        config: of the run that is planned.
        tokenizer: its tokenizer.
        spec: what decides the bytes of its dataset.
        folder: an empty folder, for the sample and what is made of it.
    """
    tokenizer_folder = folder / "tokenizer"
    tokenizer.save(tokenizer_folder)
    storage = LocalStorage(folder / "output")
    storage.create()
    # The filters chose these texts already; a second phase only puts off the packing.
    spec = spec.model_copy(
        update={"filters": NO_FILTERS, "keep_columns": (), "shuffle": None, "deduplicate": None}
    )
    parts = [_part(number, texts, spec, folder) for number, texts in enumerate(sample)]
    workers = min(config.workers, os.cpu_count() or 1)

    def do(number: int) -> tuple[PackedPart, WrittenPart]:
        spans, of_part = parts[number % len(parts)]
        part, scratch = Part(number, spans), str(folder / f"scratch-{number}")
        tokenize = TokenizeJob(
            part=part,
            scratch=scratch,
            tokenizer_folder=str(tokenizer_folder),
            engine=config.engine,
            spec=of_part,
        )
        write = WriteJob(scratch=scratch, output=str(storage), record=record_path(number))
        return pool.run(tokenize), pool.run(write)

    with WorkerPool(workers) as pool, ThreadPoolExecutor(workers) as threads:
        pool.run_in_each(PrepareJob.of(tokenizer_folder, config.engine))
        done = list(threads.map(do, range(-(-2 * workers // len(parts)) * len(parts))))
    timed = done[workers:] or done
    counts = [
        (
            texts.source_bytes,
            made.counts.documents,
            made.counts.text_bytes,
            made.counts.tokens,
            written.shard_bytes,
        )
        for texts, (made, written) in zip(sample, done, strict=False)
    ]
    tables = sum(file.stat().st_size for file in (folder / "output/documents").iterdir())
    return Sample(
        counts=np.array(counts, COUNTS),
        rate=sum(made.counts.text_bytes for made, _ in timed)
        / sum(made.seconds + written.seconds for made, written in timed),
        table_bytes=tables / max(1, sum(made.counts.tokens for made, _ in done)),
    )


def _part(
    number: int, texts: Texts, spec: DatasetSpec, folder: Path
) -> tuple[tuple[SourceSpan, ...], DatasetSpec]:
    """Texts as a file, whose reading takes next to no time, and how to read it."""
    path = folder / f"{number}.arrow"
    table = pa.table({"text": texts.texts})
    with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_file(raw, table.schema) as writer:
        writer.write_table(table)
    spec = spec.model_copy(update={"source_format": None, "text_column": "text"})
    return (SourceSpan(SourceFile(url=str(path), size=path.stat().st_size)),), spec
