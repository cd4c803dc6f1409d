"""The estimate of a run from a sample of its sources: documents, tokens, disk, time."""

from collections.abc import Callable, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from streaming_ext.base.arrays import ceil_div
from streaming_ext.base.errors import UsageError
from streaming_ext.format.record import RowCounts
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import LocalStorage, open_storage
from streaming_ext.store.buckets import OBJECT_STORES
from streaming_ext.text.formats import can_be_cut
from streaming_ext.text.parts import sizes_of
from streaming_ext.text.sources import SourceFile
from tasks.core.estimate.bench import measure
from tasks.core.estimate.config import MOST_PARTS, EstimateConfig
from tasks.core.estimate.cost import Cost, Quantity, Work, cost, ratio
from tasks.core.estimate.sample import (
    SampleCounts,
    SampledFile,
    Texts,
)
from tasks.core.shard.sources import find_sources, parts_of

_ONE_GBIT = 125e6


class Estimate(BaseModel):
    """The output and the cost of a run; sizes in bytes, rates in bytes per second.

    Attributes:
        files, parts, source_bytes: the amounts of the sources.
        scaled: the sources are those of `--total-size`, not the listed ones.
        sample_files, sample_bytes: files of the sample, and text that was read of them.
        sample_rows: rows of the sample, and the number of them that are no documents.
        problems: a problem for each file of the sample that cannot be read or holds no text.
        tokens: the tokens with one end-of-text id per document, without padding.
        bytes_per_token: the bytes of text per token.
        engine: the engine that tokenizes, in words.
        compared_bytes: text whose ids were compared with the reference's; see `Measured`.
        note: a remark on the tokenizer for people; empty for none.
        worker_rate: the rate of a worker while all others work, measured here.
        link, disk: the rates of a host; None if one does not count, or is part of `worker_rate`.
    """

    model_config = ConfigDict(frozen=True)

    files: int
    parts: int
    source_bytes: int
    scaled: bool
    sample_files: int
    sample_bytes: int
    sample_rows: RowCounts
    problems: tuple[str, ...]
    documents: Quantity
    text_bytes: Quantity
    tokens: Quantity
    bytes_per_token: Quantity
    samples: Quantity
    shard_bytes: Quantity
    shards: int
    hosts: int
    workers: int
    engine: str
    compared_bytes: int
    note: str
    worker_rate: float
    link: float | None
    disk: float | None
    cost: Cost


def estimate(
    config: EstimateConfig, report: Callable[[str], None] = lambda phase: None
) -> Estimate:
    """List the sources, work on a sample of them, and scale.

    Args:
        config: the run, and the machines.
        report: called with the current phase.

    Raises:
        UsageError, SourceError, ScratchError: as a run would; no text is found.
    """
    uploads = _is_remote(config.output)
    report("listing the sources")
    listed = find_sources(config, config.read_options)
    sizes, parts = _planned_for(config, listed)
    found = measure(config, listed, report)
    files, texts, sample, spec = found.files, found.texts, found.sample, found.spec

    source, sampled = sum(sizes), sum(file.source.size for file in files)
    counts = sample.counts
    read = counts.source_bytes.sum() / source
    drawn = counts if len(sizes) == 1 else _by_file(files, texts, counts)
    documents, text, tokens = (
        ratio(each, drawn.source_bytes, read=read).times(source)
        for each in (drawn.documents, drawn.text_bytes, drawn.tokens)
    )
    shard_bytes = tokens.times(counts.shard_bytes.sum() / max(1, counts.tokens.sum()))
    shards = _shards(parts, tokens.value, spec)
    fetched = sum(file.fetched for file in files)
    if config.remote_sources is not None:
        fetched = sampled if config.remote_sources else 0
    link = config.link or (_ONE_GBIT if uploads or fetched else None)
    work = Work(
        parts=parts,
        text=text.value,
        fetched=source * fetched / sampled,
        output=shard_bytes.value + sample.table_bytes * tokens.value,
        documents=documents.value,
        tokens=tokens.value,
        uploads=uploads,
    )
    return Estimate(
        files=len(sizes),
        parts=len(parts),
        source_bytes=source,
        scaled=config.total_size is not None,
        sample_files=len(files),
        sample_bytes=counts.text_bytes.sum(),
        sample_rows=sample.rows,
        problems=found.problems,
        documents=documents,
        text_bytes=text,
        tokens=tokens,
        bytes_per_token=ratio(drawn.text_bytes, drawn.tokens - drawn.documents, read=read),
        samples=tokens.times(1 / spec.sequence_length),
        shard_bytes=shard_bytes,
        shards=shards,
        hosts=config.hosts,
        workers=config.workers,
        engine=found.engine,
        compared_bytes=found.compared,
        note=found.tokenizer.note,
        worker_rate=sample.rate,
        link=link,
        disk=config.disk,
        cost=cost(work, config, spec, rate=sample.rate, link=link or _ONE_GBIT),
    )


def _is_remote(output: str) -> bool:
    """Return whether an output is remote, without a request: plans need no credentials.

    Raises:
        UsageError: no run could write there.
    """
    if output.partition("://")[0] in OBJECT_STORES:
        return True
    storage = open_storage(output)
    if isinstance(storage, LocalStorage):
        storage.require_no_file()
    return storage.remote


def _planned_for(
    config: EstimateConfig, listed: Sequence[SourceFile]
) -> tuple[Sequence[int], Sequence[int]]:
    """Sizes of the planned source files, and of their parts."""
    sizes = [source.size for source in listed]
    if config.total_size is None:
        return sizes, sizes_of(parts_of(listed, config, config.read_options))
    total = int(config.total_size)
    files = config.total_files or max(1, round(total / max(1, sum(sizes) / len(sizes))))
    size = max(1, total // files)
    if size > config.part_size and can_be_cut(listed[0], config.read_options):
        parts = files * ceil_div(size, int(config.part_size))
    else:
        together = min(ceil_div(int(config.min_part_size), size), int(config.part_size) // size)
        parts = ceil_div(files, max(1, together))
    if max(files, parts) > MOST_PARTS:
        raise UsageError(
            f"--total-size makes {files:,} files and {parts:,} parts; `plan` takes "
            f"{MOST_PARTS:,} at most. Give a smaller one, or fewer --total-files and a larger "
            "--part-size."
        )
    return [size] * files, [total // parts] * parts


def _by_file(
    files: Sequence[SampledFile], texts: Sequence[Texts], counts: SampleCounts
) -> SampleCounts:
    """The counts of each file, scaled from its sample."""
    found = []
    for file in files:
        # own: (counts, texts of the file)
        own = np.array(counts)[:, [each.file is file for each in texts]]
        sums = own.sum(axis=1)
        scaled = sums * (file.source.size / sums[0] if sums[0] else 0.0)
        found.append([file.source.size, *scaled[1:]])
    return SampleCounts(*np.array(found).T)


def _shards(parts: Sequence[int], tokens: float, spec: DatasetSpec) -> int:
    """Number of shards: full ones, and a last one of each part and split."""
    tokens_per_shard = spec.shard_format.samples_per_shard * spec.sequence_length
    held_out = tokens * spec.holdout_fraction
    sizes = np.asarray(parts, float)
    splits = [of_split for of_split in (tokens - held_out, held_out) if of_split]
    return sum(
        int(np.ceil(sizes * (each / sizes.sum() / tokens_per_shard)).sum()) for each in splits
    )
