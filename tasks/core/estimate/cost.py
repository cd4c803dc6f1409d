"""Totals from a sample, and the time and disk of a run: arithmetic only.

Totals are ratio estimates (Cochran, Sampling Techniques). Files are drawn, not documents: the
counts of a file are taken as a ratio to its size, which is known of all files. The interval follows
from how much these ratios differ.

Network, workers and disk are busy at the same time, so the slowest of them decides; and a part goes
through them one after another, which counts once, at both ends of the run.
"""

import heapq
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from streaming_ext.base.arrays import ceil_div
from streaming_ext.format.spec import DatasetSpec
from tasks.core.estimate.config import EstimateConfig

Resource = Literal["network", "workers", "disk"]

START_SECONDS = 4.0  # until workers work, and to publish: what a run over one small file takes
# Time of Prefect for a part's tasks, in one process per host.
SECONDS_PER_PART = 0.017
PARTS_AHEAD = 2  # on the scratch of a host, beside one per worker
MERGE_RATE = 120e6  # of spills, in bytes per second and worker: benchmarks/shuffle.py
READ_RATE = 500e6  # of spills that are read in their order
COMPARE_RATE = 60e6  # of hashes, in bytes per second of one process
SPILL_BYTES = 46  # of a document in a spill, beside its ids
_HASH_BYTES, _KEPT_BYTES = 36, 28  # of a document's hash: during the run, and in the dataset
_NAME_BYTES = 28  # of a document beside its sketch
_MANY = 100  # parts per worker: the last one decides nothing then

# Student's t for an interval of 95%, by degrees of freedom from 1; the last for all above.
_T = (12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27, 2.23, 2.21, 2.18, 2.17, 2.15, 2.14)
_ALL = 1 - 1e-9  # summed in floating point


class Quantity(BaseModel):
    """An estimate and its 95% interval, for the error of sampling alone.

    Attributes:
        value: the estimate.
        error: half the width of the interval, relative to the value; None if the sample is too
            small for one.
    """

    model_config = ConfigDict(frozen=True)

    value: float
    error: float | None

    def times(self, factor: float) -> "Quantity":
        """The same, scaled."""
        return Quantity(value=self.value * factor, error=self.error)


def ratio(counts: npt.ArrayLike, sizes: npt.ArrayLike, *, read: float) -> Quantity:
    """SampleCounts per byte, over all that a sample was drawn from.

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
        uploads: the output is remote.
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
        bottleneck: the resource that decides it.
        busy: the time of each resource alone, in seconds.
        text_rate: the rate over all hosts, in bytes per second.
        fetched, uploaded: bytes over the network, of all hosts.
        output: bytes of the dataset.
        scratch: bytes of work in progress on each host, at most.
        spills: bytes of spills on the output until it is published.
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
    """Time and disk of `work` on the configured machines.

    Args:
        work: the work to be done.
        config: the hosts, workers and disk.
        spec: the specification of the dataset; a shuffle or deduplication writes and reads spills.
        rate: the text that a worker tokenizes and writes, in bytes per second.
        link: the network link of a host, in bytes per second each way.
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
    text_seconds = work.text / source / rate  # a source byte
    busy: dict[Resource, float] = {
        "network": max(fetched, uploaded) / hosts / link,
        "workers": makespan(work.parts, workers) * text_seconds
        + ids / (MERGE_RATE if spec.shuffle else READ_RATE) / workers
        + hashes / COMPARE_RATE
        + SECONDS_PER_PART * parts_per_host * (2 if spills else 1),
        "disk": (fetched + output + spills) / hosts / config.disk if config.disk else 0.0,
    }
    bottleneck = max(busy, key=lambda name: busy[name])
    # The first parts arrive before any worker works; the last are worked on when all have arrived.
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
    """The end of the last job, if the worker that is free first takes the next one."""
    if len(jobs) > _MANY * workers:
        return max(sum(jobs) / workers, *jobs)
    free = [0.0] * workers
    for job in jobs:
        heapq.heapreplace(free, free[0] + job)
    return max(free)
