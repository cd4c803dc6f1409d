"""The measurement of a tokenizer on some files here: the engine, its ids and its rate."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from streaming_ext.base.arrays import ceil_div
from streaming_ext.base.errors import EngineMismatchError, SourceError
from streaming_ext.format.record import RowCounts
from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.store.locations import local_path, require_writable_name
from streaming_ext.store.scratch import new_folder
from streaming_ext.text.documents.text_array import num_text_bytes
from streaming_ext.text.sources import SourceFile
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
from tasks.core.estimate.config import BenchConfig, EstimateConfig
from tasks.core.estimate.sample import (
    Sample,
    SampledFile,
    Texts,
    read_texts,
    sample_files,
    without_text,
    work_on,
)
from tasks.core.shard.sources import find_sources

_COMPARED_BYTES: Final = 2**20  # of text: the reference takes up to a second
OnPhase = Callable[[str], None]


class Measured(NamedTuple):
    """A sample of the sources that was worked on.

    Attributes:
        texts: the texts of the files.
        problems: a problem for each file that cannot be read or holds no text.
        engine: the engine that tokenizes, in words.
        compared: the bytes of text whose ids were compared with the reference's; 0 if these are
            its own.
    """

    files: Sequence[SampledFile]
    texts: Sequence[Texts]
    problems: tuple[str, ...]
    tokenizer: Tokenizer
    spec: DatasetSpec
    engine: str
    compared: int
    sample: Sample


class Bench(BaseModel):
    """The work of this machine with a tokenizer on some files; sizes in bytes.

    Attributes:
        engine: the engine that tokenizes, in words.
        reference: the software whose ids count.
        rate: the text of a worker while all of them work, in bytes per second.
        workers: the number of workers.
        text_bytes: the size of the text that was tokenized.
        compared_bytes: the size of the text whose ids were compared with the reference's.
        tokens_per_byte: the tokens of a byte of text, without the ids around documents.
        problems: a problem for each file that cannot be read or holds no text.
    """

    model_config = ConfigDict(frozen=True)

    tokenizer: str
    engine: str
    reference: str
    rate: float
    workers: int
    text_bytes: int
    compared_bytes: int
    tokens_per_byte: float
    problems: tuple[str, ...]


def bench(config: BenchConfig, report: OnPhase = lambda phase: None) -> Bench:
    """Tokenize a sample of the files as a run would; see `measure`."""
    run = config.estimated
    report("listing the sources")
    found = measure(run, find_sources(run, run.read_options), report)
    counts = found.sample.counts
    text_bytes = int(counts.text_bytes.sum())
    return Bench(
        tokenizer=config.tokenizer,
        engine=found.engine,
        reference=ReferenceEngine(found.tokenizer).name,
        rate=found.sample.rate,
        workers=found.sample.workers,
        text_bytes=text_bytes,
        compared_bytes=found.compared,
        tokens_per_byte=float(counts.tokens.sum() - counts.documents.sum()) / text_bytes,
        problems=found.problems,
    )


def measure(
    config: EstimateConfig, listed: Sequence[SourceFile], report: OnPhase = lambda phase: None
) -> Measured:
    """Work on a sample of some sources, and compare ids with the reference.

    Args:
        config: the run.
        listed: the sources of the run.
        report: called with the current phase.

    Raises:
        UsageError, SourceError, ScratchError: as a run would; no text is found.
        EngineMismatchError: engine and reference differ; names the file.
    """
    scratch = None
    if config.scratch is not None:
        require_writable_name(config.scratch)
        scratch = local_path(config.scratch)
    files, problems = sample_files(listed, config)
    report("reading a sample")
    texts = read_texts(files, config)
    problems += without_text(files, texts)
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
    with new_folder(scratch) as folder:
        sample = work_on(texts, config=config, tokenizer=tokenizer, spec=spec, folder=folder)
    words = in_words(engine).partition(": expect")[0]
    return Measured(files, texts, tuple(problems), tokenizer, spec, words, compared, sample)


def _compared(sample: Sequence[Texts], tokenizer: Tokenizer, engine: Engine) -> int:
    """Compare the ids of some texts with the reference's; returns the bytes of these texts."""
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
