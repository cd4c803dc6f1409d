"""The estimate of a run from a sample of its sources: documents, tokens, disk, time.

Totals are ratio estimates (Cochran, Sampling Techniques). Files are drawn, not documents: the
counts of a file are divided by its size, which is known for all files. The interval follows from
the variance of these ratios.

Network, workers and disk are busy at the same time, so the slowest of them decides. A part passes
through them one after another; this counts once, at both ends of the run.

A bench is the measurement of the sample without the estimate.
"""

import heapq
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
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
from streaming_ext.text.tokenizer.engine import ReferenceEngine
from tasks.core.estimate.config import MOST_PARTS, BenchConfig, EstimateConfig
from tasks.core.estimate.sample import OnPhase, SampleCounts, SampledFile, Texts, measure
from tasks.core.shard.sources import find_sources, parts_of

Resource = Literal["network", "workers", "disk"]

START_SECONDS = 4.0  # to start workers and to publish: the time of a run with one small file
# Prefect's time for the tasks of a part, in one process per host.
SECONDS_PER_PART = 0.017
PARTS_AHEAD = 2  # on a host's scratch, beyond one per worker
MERGE_RATE = 120e6  # of spills, in bytes per second and worker: benchmarks/shuffle.py
READ_RATE = 500e6  # of spills that are read in order
COMPARE_RATE = 60e6  # of hashes, in bytes per second of one process
SPILL_BYTES = 46  # per document in a spill, beside its ids
_HASH_BYTES, _KEPT_BYTES = 36, 28  # per document's hash: during the run, and in the dataset
_NAME_BYTES = 28  # per document, beside its sketch
_MANY = 100  # parts per worker; beyond that the last part does not matter

# Student's t for a 95% interval, by degrees of freedom from 1; the last one is used for more.
_T = (12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27, 2.23, 2.21, 2.18, 2.17, 2.15, 2.14)
_ALL = 1 - 1e-9  # the sum is in floating point


class Quantity(BaseModel):
    """An estimate and its 95% interval, which covers only the error of sampling.

    Attributes:
        value: the estimate.
        error: half the width of the interval, relative to the value; None if the sample is too
            small for an interval.
    """

    model_config = ConfigDict(frozen=True)

    value: float
    error: float | None

    def times(self, factor: float) -> "Quantity":
        """Return the quantity scaled by a factor."""
        return Quantity(value=self.value * factor, error=self.error)


def ratio(counts: npt.ArrayLike, sizes: npt.ArrayLike, *, read: float) -> Quantity:
    """Estimate the count per byte in the whole from which a sample was drawn.

    Args:
        counts: the count of each file that was drawn.
        sizes: the size of each file that was drawn, in bytes.
        read: the fraction of the whole that was read, in [0, 1].
    """
    count, size = np.asarray(counts, float), np.asarray(sizes, float)
    value = float(count.sum() / size.sum())
    drawn = len(size)
    if read >= _ALL or not value:
        return Quantity(value=value, error=0.0)
    if drawn == 1:
        return Quantity(value=value, error=None)
    residuals = count - value * size
    variance = (1 - read) * drawn * float((residuals**2).sum()) / (drawn - 1)
    deviation = variance**0.5 / float(size.sum())
    return Quantity(value=value, error=_T[min(drawn - 1, len(_T)) - 1] * deviation / value)


class Work(NamedTuple):
    """The work of a run, in bytes.

    Attributes:
        parts: the source bytes of each part.
        text: the bytes of text of all documents.
        fetched: the bytes of the sources that come over the network.
        output: the bytes of the dataset, without the hashes that stay in it.
        documents, tokens: the numbers of documents and tokens.
        uploads: True if the output is remote.
    """

    parts: Sequence[int]
    text: float
    fetched: float
    output: float
    documents: float
    tokens: float
    uploads: bool


class Cost(BaseModel):
    """The time and disk of a run.

    Attributes:
        seconds: the time from the command to the published manifest.
        bottleneck: the resource that takes longest.
        busy: the time of each resource alone, in seconds.
        text_rate: the text that all hosts process together, in bytes per second.
        fetched, uploaded: the bytes that all hosts fetch and upload over the network.
        output: the bytes of the dataset.
        scratch: the most bytes of work in progress on each host.
        spills: the bytes of spills on the output until it is published.
    """

    model_config = ConfigDict(frozen=True)

    seconds: float
    bottleneck: Resource
    busy: dict[Resource, float]
    text_rate: float
    fetched: float
    uploaded: float
    output: float
    scratch: float
    spills: float


def cost(
    work: Work, config: EstimateConfig, spec: DatasetSpec, *, rate: float, link: float
) -> Cost:
    """Compute the time and disk that `work` takes on the configured machines.

    Args:
        work: the work to be done.
        config: the hosts, workers and disk.
        spec: the specification of the dataset; a shuffle or deduplication writes and reads spills.
        rate: the text that a worker tokenizes and writes, in bytes per second.
        link: the network link of a host, in bytes per second in each direction.
    """
    source, hosts = max(sum(work.parts), 1), config.hosts
    workers, parts_per_host = hosts * config.workers, len(work.parts) / hosts
    hash_bytes, kept_bytes = (_HASH_BYTES, _KEPT_BYTES) if spec.deduplicate else (0, 0)
    if spec.near is not None:
        hash_bytes = (1 + spec.near.bands) * (spec.near.bins + _NAME_BYTES)
        kept_bytes = spec.near.bins + _NAME_BYTES // 2
    hashes = work.documents * float(hash_bytes)
    ids = 0.0
    if spec.two_phases:
        ids = work.tokens * np.dtype(spec.dtype).itemsize + work.documents * SPILL_BYTES
    spills = ids + hashes
    output = work.output + work.documents * kept_bytes
    fetched = work.fetched + (spills if work.uploads else 0.0)
    uploaded = output + spills if work.uploads else 0.0
    text_seconds = work.text / source / rate  # per source byte
    busy: dict[Resource, float] = {
        "network": max(fetched, uploaded) / hosts / link,
        "workers": makespan(work.parts, workers) * text_seconds
        + ids / (MERGE_RATE if spec.shuffle else READ_RATE) / workers
        + hashes / COMPARE_RATE
        + SECONDS_PER_PART * parts_per_host * (2 if spills else 1),
        "disk": (fetched + output + spills) / hosts / config.disk if config.disk else 0.0,
    }
    bottleneck = max(busy, key=lambda name: busy[name])
    # Workers wait until the first parts have arrived; the network is idle during the last parts.
    part = source / len(work.parts)
    ends: dict[Resource, float] = {
        "network": part * min(parts_per_host, config.workers) * work.fetched / source / link,
        "workers": part * text_seconds,
    }
    seconds = START_SECONDS + busy[bottleneck]
    seconds += sum(each for name, each in ends.items() if name != bottleneck)
    on_scratch = config.workers * (2 if work.uploads else 1) + PARTS_AHEAD
    on_scratch = min(on_scratch, ceil_div(len(work.parts), hosts))
    return Cost(
        seconds=seconds,
        bottleneck=bottleneck,
        busy=busy,
        text_rate=work.text / seconds,
        fetched=fetched,
        uploaded=uploaded,
        output=output,
        scratch=on_scratch * max(work.parts) * (work.fetched + max(output, spills)) / source,
        spills=spills,
    )


def makespan(jobs: Sequence[float], workers: int) -> float:
    """Return when the last job ends, if the worker that is free first takes the next job."""
    if len(jobs) > _MANY * workers:
        return max(sum(jobs) / workers, *jobs)
    free = [0.0] * workers
    for job in jobs:
        heapq.heapreplace(free, free[0] + job)
    return max(free)


_ONE_GBIT = 125e6


class Estimate(BaseModel):
    """The estimated output and cost of a run; sizes in bytes, rates in bytes per second.

    Attributes:
        files, parts, source_bytes: the number of source files, of parts, and of source bytes.
        scaled: True if the sources are those of `--total-size`, not the listed ones.
        sample_files, sample_bytes: the number of files in the sample, and the text read from them.
        sample_rows: the rows of the sample, with the number of rows that are not documents.
        problems: a message about each file of the sample that cannot be read or holds no text.
        tokens: the tokens, with one end-of-text id per document and without padding.
        bytes_per_token: the bytes of text per token.
        engine: the engine that tokenizes, in words.
        compared_bytes: the text whose ids were compared with the reference's; see `Measured`.
        note: a remark on the tokenizer for people; empty if there is none.
        worker_rate: the rate of a worker while all work, measured on this host.
        link, disk: the rates of a host; None if unused, or if part of `worker_rate`.
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


class Bench(BaseModel):
    """The measurement of a tokenizer on this machine and some files; sizes in bytes.

    Attributes:
        engine: the engine that tokenizes, in words.
        reference: the software whose ids count as right.
        rate: the text that a worker processes while all of them work, in bytes per second.
        workers: the number of workers.
        text_bytes: the size of the text that was tokenized.
        compared_bytes: the size of the text whose ids were compared with the reference's.
        tokens_per_byte: the tokens per byte of text, without the ids around documents.
        problems: a message about each file that cannot be read or holds no text.
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
    counts = found.counts
    text_bytes = int(counts.text_bytes.sum())
    return Bench(
        tokenizer=config.tokenizer,
        engine=found.engine,
        reference=ReferenceEngine(found.tokenizer).name,
        rate=found.rate,
        workers=found.workers,
        text_bytes=text_bytes,
        compared_bytes=found.compared,
        tokens_per_byte=float(counts.tokens.sum() - counts.documents.sum()) / text_bytes,
        problems=found.problems,
    )


def estimate(config: EstimateConfig, report: OnPhase = lambda phase: None) -> Estimate:
    """List the sources, measure a sample of them, and scale the result.

    Args:
        config: the run, and the machines.
        report: a function that is called with the current phase.

    Raises:
        UsageError, SourceError, ScratchError: as in a run; or no text is found.
    """
    uploads = _is_remote(config.output)
    report("listing the sources")
    listed = find_sources(config, config.read_options)
    sizes, parts = _planned_for(config, listed)
    found = measure(config, listed, report)
    files, counts, spec = found.files, found.counts, found.spec

    source, sampled = sum(sizes), sum(file.source.size for file in files)
    read = counts.source_bytes.sum() / source
    drawn = counts if len(sizes) == 1 else _by_file(files, found.texts, counts)
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
        output=shard_bytes.value + found.table_bytes * tokens.value,
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
        sample_rows=found.rows,
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
        worker_rate=found.rate,
        link=link,
        disk=config.disk,
        cost=cost(work, config, spec, rate=found.rate, link=link or _ONE_GBIT),
    )


def _is_remote(output: str) -> bool:
    """Return whether an output is remote, without a request, so that a plan needs no credentials.

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
    """Return the sizes of the planned source files, and the sizes of their parts."""
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
    """Return the counts of each file, scaled from its sample."""
    found = []
    for file in files:
        # own: (counts, texts of the file)
        own = np.array(counts)[:, [each.file is file for each in texts]]
        sums = own.sum(axis=1)
        scaled = sums * (file.source.size / sums[0] if sums[0] else 0.0)
        found.append([file.source.size, *scaled[1:]])
    return SampleCounts(*np.array(found).T)


def _shards(parts: Sequence[int], tokens: float, spec: DatasetSpec) -> int:
    """Return the number of shards: the full ones, and the last one of each part and split."""
    tokens_per_shard = spec.shard_format.samples_per_shard * spec.sequence_length
    held_out = tokens * spec.holdout_fraction
    sizes = np.asarray(parts, float)
    splits = [of_split for of_split in (tokens - held_out, held_out) if of_split]
    return sum(
        int(np.ceil(sizes * (each / sizes.sum() / tokens_per_shard)).sum()) for each in splits
    )
