"""Texts of some source files, tokenized and written as a run would: by the real workers."""

import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.arrays import ceil_div
from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.filters import NO_FILTERS
from streaming_ext.format.layout import record_path
from streaming_ext.format.record import RowCounts
from streaming_ext.format.spec import DatasetSpec, ReadOptions
from streaming_ext.store import LocalStorage
from streaming_ext.text.documents.source_format import FileBlock
from streaming_ext.text.fetch import worth_fetching
from streaming_ext.text.formats import format_of
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.part_documents import no_text
from tasks.core.estimate.config import EstimateConfig
from tasks.core.workers.move_part import PackedPart, WriteJob, WrittenPart
from tasks.core.workers.pool import WorkerPool
from tasks.core.workers.tokenize_part import TokenizeJob

_BLOCKS = 16  # to read in all; at least two of each file
_BATCH_BYTES = 2**18  # of text: little is read beyond the sample
Floats = npt.NDArray[np.float64]


class SampledFile(NamedTuple):
    """A source file of the sample.

    Attributes:
        size: the size of all blocks, in bytes.
        fetched: bytes that a run fetches of the file; 0 if it is local.
    """

    source: SourceFile
    blocks: Sequence[FileBlock]
    size: int
    fetched: int


class Texts(NamedTuple):
    """Texts from the start of a block.

    Attributes:
        source_bytes: the bytes of the file, in proportion.
        rows: the rows that were read.
    """

    file: SampledFile
    texts: pa.ChunkedArray
    source_bytes: float
    rows: RowCounts


class SampleCounts(NamedTuple):
    """SampleCounts of texts, or of files; each an array of (texts,) or (files,)."""

    source_bytes: Floats
    documents: Floats
    text_bytes: Floats
    tokens: Floats
    shard_bytes: Floats


class Sample(NamedTuple):
    """The results of the texts of a sample.

    Attributes:
        counts: the counts of each text.
        rows: the rows of all texts, with those whose text gives no token.
        rate: the text of a worker while all of them work, in bytes per second.
        table_bytes: the bytes per token of the tables of documents.
        workers: the number of workers.
    """

    counts: SampleCounts
    rows: RowCounts
    rate: float
    table_bytes: float
    workers: int


def sample_files(
    sources: Sequence[SourceFile], config: EstimateConfig
) -> tuple[list[SampledFile], list[str]]:
    """Some of the files, drawn at random, and what is wrong with those that cannot be read.

    Raises:
        SourceError, UsageError: none of them can be read.
    """

    def look(source: SourceFile) -> SampledFile | SourceError | UsageError:
        options, file = config.read_options, SourceFileBytes(source)
        reads = format_of(source.url, options)
        try:
            reads.check(file, options)
            blocks = reads.blocks(file, options)
            needed = reads.needed(file, options, None) if source.remote else ()
        except (SourceError, UsageError) as error:
            return error
        ranges = worth_fetching(source, needed) if source.remote else []
        return SampledFile(
            source=source,
            blocks=blocks,
            size=sum(block.size for block in blocks),
            fetched=source.size if ranges is None else sum(end - start for start, end in ranges),
        )

    rng = random.Random(config.sample_seed)  # noqa: S311 - no secret
    drawn = rng.sample(list(sources), min(len(sources), config.sample_files))
    found = list(mapped_ahead(look, drawn))
    errors = [each for each in found if isinstance(each, Exception)]
    if len(errors) == len(found):
        raise errors[0]
    return [each for each in found if isinstance(each, SampledFile)], [*map(str, errors)]


def read_texts(files: Sequence[SampledFile], config: EstimateConfig) -> list[Texts]:
    """Texts of some blocks of each file, drawn at random; all of them if they are few."""
    blocks, most = max(2, ceil_div(_BLOCKS, len(files))), None
    if sum(file.size for file in files) > config.sample_size:
        most = config.sample_size // (len(files) * blocks)

    def read(file: SampledFile) -> list[Texts]:
        rng = random.Random(f"{config.sample_seed} {file.source.name}")  # noqa: S311 - no secret
        drawn = file.blocks
        if most is not None:
            count = len(file.blocks)
            chosen = sorted(rng.sample(range(count), min(blocks, count)))
            drawn = [file.blocks[number] for number in chosen]
        return list(_read(file, drawn, config.read_options, most))

    return [texts for found in mapped_ahead(read, files) for texts in found]


def _read(
    file: SampledFile, blocks: Sequence[FileBlock], options: ReadOptions, most: int | None
) -> Iterator[Texts]:
    """Texts of blocks; of each from its start, about `most` bytes."""
    reads, source = format_of(file.source.url, options), SourceFileBytes(file.source)
    for block in blocks:
        chunks, counts, text_bytes, fraction = [], list[RowCounts](), 0, 1.0
        for batch in reads.read(source, options, span=block.span, batch_bytes=_BATCH_BYTES):
            chunks.append(batch.texts)
            counts.append(batch.counts)
            text_bytes += batch.texts.nbytes
            if most is not None and text_bytes >= most:
                fraction = batch.fraction
                break
        texts, rows = pa.chunked_array(chunks, pa.large_string()), RowCounts.total(counts)
        some = texts.filter(pc.not_equal(texts, ""))
        size = block.size * fraction
        each = None if fraction == 1 or options.filters.given() else reads.length_bytes
        if each is not None and pc.count_distinct(texts).as_py() == len(texts):
            # The file stores these texts uncompressed, and rows differ in size: count bytes.
            size = pc.sum(pc.binary_length(texts)).as_py() + each * rows.rows
        size *= file.source.size / max(file.size, 1)
        yield Texts(file, some, size, rows)


def without_text(files: Sequence[SampledFile], texts: Sequence[Texts]) -> list[str]:
    """Messages about the files whose rows of the sample hold no text."""
    found = []
    for file in files:
        rows = RowCounts.total(each.rows for each in texts if each.file is file)
        if rows.no_text:
            found.append(no_text(file.source.url, rows))
    return found


def work_on(
    sample: Sequence[Texts],
    *,
    config: EstimateConfig,
    tokenizer: Tokenizer,
    spec: DatasetSpec,
    folder: Path,
) -> Sample:
    """Tokenize and write texts on as many workers as the run has, or as this host has cores.

    Each worker's first part is not timed: engines remember words that they have met. If there are
    too few parts for that, they are done again.

    Args:
        sample: the texts of the sources.
        config: the configuration of the planned run.
        tokenizer: the tokenizer of the run.
        spec: the specification of the dataset.
        folder: an empty folder for the sample and its results.
    """
    saved = folder / "tokenizer"
    tokenizer.save(saved)
    storage = LocalStorage(folder / "output")
    storage.create()
    # The texts are filtered already, and a second phase would only delay the packing.
    spec = spec.model_copy(
        update={
            "filters": NO_FILTERS,
            "keep_columns": (),
            "shuffle": None,
            "deduplicate": None,
            "source_format": None,
            "text_column": "text",
        }
    )
    files = [_write(texts, folder / f"{number}.arrow") for number, texts in enumerate(sample)]
    workers = min(config.workers, os.cpu_count() or 1)

    def do(number: int) -> tuple[PackedPart, WrittenPart]:
        part = Part.whole(number, files[number % len(files)])
        scratch = str(folder / f"scratch-{number}")
        tokenize = TokenizeJob(
            part=part,
            scratch=scratch,
            tokenizer_folder=str(saved),
            engine=config.engine,
            spec=spec,
        )
        write = WriteJob(scratch=scratch, output=str(storage), record=record_path(number))
        return pool.run(tokenize), pool.run(write)

    with WorkerPool(workers) as pool, ThreadPoolExecutor(workers) as threads:
        done = list(threads.map(do, range(ceil_div(2 * workers, len(files)) * len(files))))
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
        counts=SampleCounts(*np.array(counts, float).T),
        rows=RowCounts.total(
            texts.rows.model_copy(
                update={"empty_documents": texts.rows.empty_documents + made.counts.empty_documents}
            )
            for texts, (made, _) in zip(sample, done, strict=False)
        ),
        rate=sum(made.counts.text_bytes for made, _ in timed)
        / sum(made.seconds + written.seconds for made, written in timed),
        table_bytes=tables / max(1, sum(made.counts.tokens for made, _ in done)),
        workers=workers,
    )


def _write(texts: Texts, path: Path) -> SourceFile:
    """Texts as an Arrow file, whose reading takes next to no time."""
    table = pa.table({"text": texts.texts})
    with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_file(raw, table.schema) as writer:
        writer.write_table(table)
    return SourceFile(url=str(path), size=path.stat().st_size)
