"""A sample of the sources: texts that the workers of a run tokenize and write."""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.arrays import ceil_div
from streaming_ext.base.errors import EngineMismatchError, SourceError, UsageError
from streaming_ext.base.threads import cores, mapped_ahead
from streaming_ext.format.filters import NO_FILTERS
from streaming_ext.format.layout import record_path
from streaming_ext.format.record import RowCounts
from streaming_ext.format.spec import DatasetSpec, ReadOptions, TokenizerIdentity
from streaming_ext.store import LocalStorage
from streaming_ext.store.locations import local_path, require_writable_name
from streaming_ext.store.scratch import new_folder
from streaming_ext.text.documents.source_format import FileBlock
from streaming_ext.text.documents.text_array import num_text_bytes
from streaming_ext.text.fetch import worth_fetching
from streaming_ext.text.formats import format_of
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from streaming_ext.text.text_hashes import document_hashes
from streaming_ext.text.tokenizer.engine import (
    Engine,
    ReferenceEngine,
    audit_sample,
    choose_engine,
    in_words,
    rows_to_audit,
)
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.part_documents import no_text
from tasks.core.estimate.config import EstimateConfig
from tasks.core.options import EngineChoice
from tasks.core.workers.move_part import PackedPart, WriteJob, WrittenPart
from tasks.core.workers.pool import WorkerPool
from tasks.core.workers.tokenize_part import TokenizeJob

_BLOCKS = 16  # to read in total; at least two per file
_BATCH_BYTES = 2**18  # of text: small, so that little is read beyond the sample
_COMPARED_BYTES: Final = 2**20  # of text: takes the reference up to a second
Floats = npt.NDArray[np.float64]
OnPhase = Callable[[str], None]


class SampledFile(NamedTuple):
    """A source file of the sample.

    Attributes:
        size: the size of all blocks, in bytes.
        fetched: the bytes of the file that a run fetches; 0 if it is local.
    """

    source: SourceFile
    blocks: Sequence[FileBlock]
    size: int
    fetched: int


class Texts(NamedTuple):
    """Texts from the start of a block.

    Attributes:
        source_bytes: the bytes of the file that these texts take, in proportion.
        rows: the counts of the rows that were read.
    """

    file: SampledFile
    texts: pa.ChunkedArray
    source_bytes: float
    rows: RowCounts


class SampleCounts(NamedTuple):
    """The counts of each text, (texts,), or of each file, (files,)."""

    source_bytes: Floats
    documents: Floats
    text_bytes: Floats
    tokens: Floats
    shard_bytes: Floats


class Measured(NamedTuple):
    """A sample of the sources, and its measurements.

    Attributes:
        texts: the texts of the files.
        problems: a message about each file that cannot be read or holds no text.
        engine: the engine that tokenizes, in words.
        compared: the bytes of text whose ids were compared with the reference's; 0 if the engine
            is the reference.
        counts: the counts of each text.
        rows: the rows of all texts, including those whose text gives no token.
        rate: the text that a worker processes while all of them work, in bytes per second.
        table_bytes: the bytes per token of the tables of documents.
        workers: the number of workers.
    """

    files: Sequence[SampledFile]
    texts: Sequence[Texts]
    problems: tuple[str, ...]
    tokenizer: Tokenizer
    spec: DatasetSpec
    engine: str
    compared: int
    counts: SampleCounts
    rows: RowCounts
    rate: float
    table_bytes: float
    workers: int


def measure(
    config: EstimateConfig, listed: Sequence[SourceFile], report: OnPhase = lambda phase: None
) -> Measured:
    """Tokenize and write a sample of the sources, and compare ids with the reference's.

    Args:
        config: the run.
        listed: the sources of the run.
        report: a function that is called with the current phase.

    Raises:
        UsageError, SourceError, ScratchError: as in a run; or no text is found.
        EngineMismatchError: engine and reference differ; the message names the file.
    """
    scratch = None
    if config.scratch is not None:
        require_writable_name(config.scratch)
        scratch = local_path(config.scratch)
    files, problems = _sample_files(listed, config)
    report("reading a sample")
    texts = _read_texts(files, config)
    problems += _without_text(files, texts)
    if not any(len(each.texts) for each in texts):
        rows = RowCounts.total(each.rows for each in texts)
        why = "\n".join(problems) or rows.left_out_text or "the files are empty"
        raise SourceError(f"{files[0].source.url}: no text in the rows of the sample: {why}")
    tokenizer = config.load_tokenizer()
    spec = config.spec(TokenizerIdentity.model_validate(tokenizer.description()))
    report("comparing ids with the reference")
    engine = choose_engine(tokenizer, engine=config.engine)
    compared = 0 if isinstance(engine, ReferenceEngine) else _compared(texts, tokenizer, engine)
    report("tokenizing the sample")
    workers = min(config.workers, cores())
    with new_folder(scratch) as folder:
        done = _work_on(texts, tokenizer, spec, folder, workers=workers, engine=config.engine)
        tables = sum(file.stat().st_size for file in (folder / "output/documents").iterdir())
    timed = done[workers:] or done
    made = [
        (
            each.source_bytes,
            packed.counts.documents,
            packed.counts.text_bytes,
            packed.counts.tokens,
            written.shard_bytes,
        )
        for each, (packed, written) in zip(texts, done, strict=False)
    ]
    rows = RowCounts.total(each.rows for each in texts)
    empty = sum(packed.counts.empty_documents for packed, _ in done[: len(texts)])
    return Measured(
        files=files,
        texts=texts,
        problems=tuple(problems),
        tokenizer=tokenizer,
        spec=spec,
        engine=in_words(engine).partition(": expect")[0],
        compared=compared,
        counts=SampleCounts(*np.array(made, float).T),
        rows=rows.model_copy(update={"empty_documents": rows.empty_documents + empty}),
        rate=sum(packed.counts.text_bytes for packed, _ in timed)
        / sum(packed.seconds + written.seconds for packed, written in timed),
        table_bytes=tables / max(1, sum(packed.counts.tokens for packed, _ in done)),
        workers=workers,
    )


def _compared(sample: Sequence[Texts], tokenizer: Tokenizer, engine: Engine) -> int:
    """Compare the ids of some texts with the reference's; return the bytes of these texts."""
    num_bytes, compared = ceil_div(_COMPARED_BYTES, len(sample)), 0
    for each in sample:
        texts = each.texts.combine_chunks()
        texts = texts.take(
            rows_to_audit(document_hashes(texts, seed=0), texts, num_bytes=num_bytes)
        )
        try:
            audit_sample(tokenizer, texts, engine.encode(texts), range(len(texts)))
        except EngineMismatchError as error:
            raise EngineMismatchError(f"{each.file.source.url}, in a sample: {error}") from None
        compared += num_text_bytes(texts)
    return compared


def _sample_files(
    sources: Sequence[SourceFile], config: EstimateConfig
) -> tuple[list[SampledFile], list[str]]:
    """Draw files at random; return those that can be read, and messages about the others.

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


def _read_texts(files: Sequence[SampledFile], config: EstimateConfig) -> list[Texts]:
    """Read texts from random blocks of each file; read all texts if the files are small."""
    blocks, most = max(2, ceil_div(_BLOCKS, len(files))), None
    if sum(file.size for file in files) > config.sample_size:
        most = config.sample_size // (len(files) * blocks)

    def read(file: SampledFile) -> list[Texts]:
        rng = random.Random(f"{config.sample_seed} {file.source.name}")  # noqa: S311 - no secret
        if most is None:
            drawn = _joined(file.blocks, blocks)
        else:
            count = len(file.blocks)
            chosen = sorted(rng.sample(range(count), min(blocks, count)))
            drawn = [file.blocks[number] for number in chosen]
        return list(_read(file, drawn, config.read_options, most))

    return [texts for found in mapped_ahead(read, files) for texts in found]


def _joined(blocks: Sequence[FileBlock], most: int) -> Sequence[FileBlock]:
    """Join consecutive blocks of a file, so that there are `most` of them or fewer."""
    spans = [block.span for block in blocks if block.span is not None]
    if len(spans) <= most:  # a file without spans is a single block
        return blocks
    count = ceil_div(len(blocks), most)
    return [
        FileBlock(
            sum(block.size for block in blocks[at : at + count]),
            (spans[at][0], spans[at : at + count][-1][1]),
        )
        for at in range(0, len(blocks), count)
    ]


def _read(
    file: SampledFile, blocks: Sequence[FileBlock], options: ReadOptions, most: int | None
) -> Iterator[Texts]:
    """Yield the texts at the start of each block, about `most` bytes per block."""
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
            # The file stores these texts uncompressed, and rows differ in size: count their bytes.
            size = pc.sum(pc.binary_length(texts)).as_py() + each * rows.rows
        size *= file.source.size / max(file.size, 1)
        yield Texts(file, some, size, rows)


def _without_text(files: Sequence[SampledFile], texts: Sequence[Texts]) -> list[str]:
    """Return messages about the files whose rows in the sample hold no text."""
    found = []
    for file in files:
        rows = RowCounts.total(each.rows for each in texts if each.file is file)
        if rows.no_text:
            found.append(no_text(file.source.url, rows))
    return found


def _work_on(
    sample: Sequence[Texts],
    tokenizer: Tokenizer,
    spec: DatasetSpec,
    folder: Path,
    *,
    workers: int,
    engine: EngineChoice,
) -> list[tuple[PackedPart, WrittenPart]]:
    """Tokenize and write the texts on `workers` workers; return the result of each part.

    `measure` does not time the first part of each worker, as engines remember words that they have
    met. If there are too few texts for that, they are done again.

    Args:
        sample: the texts of the sources.
        tokenizer: the tokenizer of the run.
        spec: the specification of the dataset.
        folder: an empty folder for the sample and its results.
        workers: the number of workers.
        engine: the configured engine.
    """
    saved = folder / "tokenizer"
    tokenizer.save(saved)
    storage = LocalStorage(folder / "output")
    storage.create()
    # The texts are filtered already, and a second phase would only delay packing.
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

    def do(number: int) -> tuple[PackedPart, WrittenPart]:
        part = Part.whole(number, files[number % len(files)])
        scratch = folder / f"scratch-{number}"
        tokenize = TokenizeJob(
            part=part, scratch=scratch, tokenizer_folder=saved, engine=engine, spec=spec
        )
        write = WriteJob(scratch=scratch, output=str(storage), record=record_path(number))
        return pool.run(tokenize), pool.run(write)

    with WorkerPool(workers) as pool, ThreadPoolExecutor(workers) as threads:
        return list(threads.map(do, range(ceil_div(2 * workers, len(files)) * len(files))))


def _write(texts: Texts, path: Path) -> SourceFile:
    """Write texts to an Arrow file, which takes almost no time to read."""
    table = pa.table({"text": texts.texts})
    with pa.OSFile(str(path), "wb") as raw, pa.ipc.new_file(raw, table.schema) as writer:
        writer.write_table(table)
    return SourceFile(url=str(path), size=path.stat().st_size)
