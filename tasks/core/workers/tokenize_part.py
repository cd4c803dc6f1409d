"""The job that tokenizes a part, into packed shards or into spills for a second phase."""

import gc
from collections.abc import Callable
from pathlib import Path

from streaming_ext.format.layout import documents_path
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store.scratch import writing_scratch
from streaming_ext.text.parts import Part
from streaming_ext.text.token_sets.token_set import IdsAsTheyAre
from streaming_ext.text.tokenizer.engine import Engine, choose_engine, in_words
from streaming_ext.text.tokenizer.load import open_saved
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.part_documents import PartDocuments
from streaming_ext.writing.part_files import PartFiles
from streaming_ext.writing.split_writer import Memories
from streaming_ext.writing.tokenize import Counts, emptied, make_part
from tasks.core.options import EngineChoice
from tasks.core.shuffle.known_texts import EarlierTexts
from tasks.core.shuffle.sort import Spilled
from tasks.core.shuffle.spills import SpillRecord
from tasks.core.workers.messages import Job, JobProgress, JobResult, Report, WorkerCache
from tasks.core.workers.move_part import PackedPart


class TokenizeJob(Job[PackedPart]):
    """Tokenize one part into packed shards or spills on scratch.

    Attributes:
        part: the number and spans of the part.
        paths: the paths of the fetched spans; empty if the sources are files of this host.
        scratch: the folder of the result, which is replaced if it exists.
        tokenizer_folder: the folder that `Tokenizer.save` wrote.
        first_source: the number of the first span's source, if documents are shuffled.
        first: the number of the first part of the run.
        one_spill: True if a shuffled part becomes one spill, however large it is.
        known_on: the output, if copies of texts of earlier parts need not be tokenized.
    """

    RESULT = PackedPart

    part: Part
    paths: tuple[Path, ...] = ()
    scratch: Path
    tokenizer_folder: Path
    engine: EngineChoice
    spec: DatasetSpec
    first_source: int = 0
    first: int = 0
    one_spill: bool = False
    known_on: str | None = None

    def do(self, cache: WorkerCache, report: Report) -> PackedPart:
        """Tokenize the part; see `tokenize_part`."""
        tokenizer, engine = cache.latest(tokenizer_and_engine, self.tokenizer_folder, self.engine)
        if self.spec.imported is None:
            report(JobProgress(fraction=0.0, engine=in_words(engine)))
        known = None
        if self.known_on is not None:
            output = cache.storage(self.known_on)
            known = cache.latest(EarlierTexts, output, self.spec, self.first)
        return tokenize_part(self, tokenizer, engine, report, cache.memories, known=known)


class LoadTokenizerJob(Job[JobResult]):
    """Load the tokenizer and engine for `TokenizeJob`, so that the first part need not wait."""

    RESULT = JobResult

    tokenizer_folder: Path
    engine: EngineChoice

    def do(self, cache: WorkerCache, report: Report) -> JobResult:
        """Load them into the worker's cache."""
        cache.latest(tokenizer_and_engine, self.tokenizer_folder, self.engine)
        return JobResult()


def tokenizer_and_engine(folder: Path, engine: EngineChoice) -> tuple[Tokenizer, Engine]:
    """Load the tokenizer saved in a folder, and choose the engine that tokenizes."""
    tokenizer = open_saved(folder, trusted=True)
    with writing_scratch(folder):
        chosen = choose_engine(tokenizer, engine=engine, saved=folder)
    gc.freeze()  # these objects stay: garbage collection of them would cost a twentieth
    return tokenizer, chosen


def tokenize_part(
    job: TokenizeJob,
    tokenizer: Tokenizer,
    engine: Engine,
    report: Callable[[JobProgress], None] = lambda progress: None,
    memories: Memories | None = None,
    *,
    known: EarlierTexts | None = None,
) -> PackedPart:
    """Tokenize the spans of a part into `job.scratch`; see `make_part`.

    Args:
        job: the part, its files and its folder.
        tokenizer: the reference tokenizer.
        engine: the engine that tokenizes.
        report: a function that is called with the progress.
        memories: the memory for raw shards, kept from part to part to avoid fresh pages.
        known: the texts whose copies are left out, and need not be tokenized.

    Raises:
        SourceError, EngineMismatchError: see `make_part`.
        ScratchError: scratch is full or not writable.
    """
    spec, number, folder, words = job.spec, job.part.number, job.scratch, in_words(engine)
    if spec.imported is not None:
        engine, words = IdsAsTheyAre(), ""
    documents = PartDocuments(job.part, job.paths, spec.read_options)

    def forward(fraction: float, counts: Counts) -> None:
        tokens, text_bytes = counts.tokens, counts.text_bytes
        report(JobProgress(fraction=fraction, text_bytes=text_bytes, tokens=tokens, engine=words))

    with emptied(folder):
        spills: Spilled | None = None
        if spec.two_phases:
            spills = Spilled(
                folder,
                number,
                spec,
                documents,
                first_source=job.first_source,
                one_spill=job.one_spill,
            )
        sink = spills or PartFiles(folder, number, spec, {} if memories is None else memories)
        if known is not None:
            known.begin(number)
        counts = make_part(documents, spec, tokenizer, engine, sink, report=forward, known=known)
        record: PartRecord | SpillRecord
        if spills is None:
            listed = documents_path(number)
            file = FileRecord.of(listed, (folder / listed).read_bytes())
            record = PartRecord(**dict(counts), documents=file)
        else:
            record = SpillRecord(
                **dict(counts),
                documents=spills.documents,
                whole_version=documents.whole_version() if spec.shuffle is not None else None,
                spills=spills.spills,
                digests=spills.digests,
            )
        return PackedPart.save(record, folder, engine=words)
