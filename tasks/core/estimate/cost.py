"""Time, disk and requests of a run: arithmetic only.

Network, cores, disk and object store work at the same time, so the slowest decides; a file also
goes through them one after another, which shows once, at both ends of the run.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from tasks.core.shuffle.run_writer import BLOCK_BYTES, MOST_BLOCKS

Resource = Literal["network", "cpu", "disk", "requests"]

# What Prefect takes for a file's tasks, in seconds of one process a host: sharding/many_files.py in
# benchmarks/ tells 2,400 files of 1 MB from 8 of 300 MB; a local file has two.
SECONDS_A_FILE = 0.017
PARTS_AHEAD = 2  # files a host has in hand beside one a worker
AHEAD_BYTES = 8 * 2**30  # of downloaded files that no worker has begun, at most
REQUESTS_A_PART = 2  # its record and its table of documents; each shard is one more
MERGE_RATE = 120e6  # of runs, in bytes a second of a worker: benchmarks/shuffle/
READ_RATE = 500e6  # of runs that are read as they were written
COMPARE_RATE = 60e6  # of hashes, in bytes a second of the process that arranges
PIECE_BYTES = 8 * 2**20  # of an object that one request brings


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What is to be done, in bytes.

    Attributes:
        files: sizes of the parts that the source files become.
        text_a_byte: text in a byte of source file.
        fetched_a_byte: of a byte of source file, what must come over the network; 0 for local.
        tokens: of all documents, end-of-text ids counted.
        stored: bytes of shards.
        documents_bytes: bytes of the tables of documents and of the records.
        shards: files of shards.
        uploads: the output is remote.
        in_pieces: the sources are objects, read in pieces.
        second: what a second stage adds; None without one.
    """

    files: Sequence[int]
    text_a_byte: float
    fetched_a_byte: float
    tokens: float
    stored: float
    documents_bytes: float
    shards: float
    uploads: bool
    in_pieces: bool
    second: "SecondStage | None" = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SecondStage:
    """The second stage of a run with a shuffle, or where copies are left out.

    Attributes:
        bytes: of all runs.
        runs: files that these are.
        parts: of the stage.
        shuffled: each part reads a range of each run, not a run of its own.
        digests: bytes of the hashes that are compared between the stages.
        ranges: of hashes, which are compared one after another.
        kept: bytes of the hashes that stay in the dataset, a file for each of these ranges.
        merged: what a part of the first stage sorts becomes one run, on scratch.
    """

    bytes: float
    runs: int
    parts: int
    shuffled: bool = True
    digests: float = 0.0
    ranges: int = 0
    kept: float = 0.0
    merged: bool = False

    @property
    def ranges_of_runs(self) -> int:
        """How often a part reads from a run."""
        return self.runs * self.parts if self.shuffled else self.runs

    @property
    def bytes_beyond(self) -> float:
        """What is read that no part asks for: a range begins and ends within a block."""
        if not self.shuffled:
            return 0.0
        block = max(BLOCK_BYTES, self.bytes / max(self.runs, 1) / MOST_BLOCKS)
        return self.ranges_of_runs * block  # half of one at each end


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """The hosts, all alike.

    Attributes:
        hosts: how many.
        workers: worker processes a host.
        text_rate: text that one of them tokenizes, packs and compresses, in bytes a second.
        link: of a host, in bytes a second each way.
        disk: what a host's disk writes, in bytes a second; None where `text_rate` has it in.
        request_rate: that the object store takes, a second.
    """

    hosts: int
    workers: int
    text_rate: float
    link: float
    disk: float | None
    request_rate: float


class Cost(BaseModel):
    """What a run takes.

    Attributes:
        seconds: from the first file to the published manifest.
        bottleneck: what decides that.
        busy: what each resource alone would take, in seconds.
        text_rate: over all hosts, in bytes a second.
        fetched, uploaded: bytes over the network, of all hosts.
        output: bytes of the dataset.
        scratch: bytes that work in progress takes on each host, at most.
        runs: bytes of runs that lie on the output until it is published.
        gets, puts: requests to object stores or servers.
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
    runs: float = 0.0
    gets: int
    puts: int


def cost(work: Work, machines: Machines) -> Cost:
    """The time, the disk and the requests of `work` on `machines`."""
    source = float(sum(work.files))
    text = source * work.text_a_byte
    fetched = source * work.fetched_a_byte
    second = work.second or SecondStage(bytes=0.0, runs=0, parts=0)
    output = work.stored + work.documents_bytes + second.kept
    runs = second.bytes + second.digests
    uploaded = output + runs if work.uploads else 0.0
    gets, puts = _requests(work, fetched)
    if work.uploads:
        fetched += runs + second.bytes_beyond
    written = output + runs + fetched  # parts lie packed on scratch, and keep their place on a disk
    lanes = machines.hosts * machines.workers
    of_file = work.text_a_byte / machines.text_rate
    busy: dict[Resource, float] = {
        "network": max(fetched, uploaded) / machines.hosts / machines.link,
        "cpu": makespan(np.asarray(work.files, float) * of_file, lanes)
        + second.bytes / (MERGE_RATE if second.shuffled else READ_RATE) / lanes
        + second.digests / COMPARE_RATE
        + SECONDS_A_FILE * (len(work.files) + second.parts) / machines.hosts,
        "disk": 0.0 if machines.disk is None else written / machines.hosts / machines.disk,
        "requests": (gets + puts) / machines.request_rate,
    }
    bottleneck = max(busy, key=lambda name: busy[name])
    # The first file has to come before anyone works, the last to be worked on when it has come.
    mean = source / max(len(work.files), 1)
    at_once = min(len(work.files), lanes) / machines.hosts
    ends = {
        "network": mean * work.fetched_a_byte * at_once / machines.link,
        "cpu": mean * of_file,
    }
    seconds = busy[bottleneck] + sum(ends[name] for name in ends if name != bottleneck)
    return Cost(
        seconds=seconds,
        bottleneck=bottleneck,
        busy=busy,
        text_rate=text / seconds if seconds else 0.0,
        fetched=fetched,
        uploaded=uploaded,
        output=output,
        scratch=_scratch(work, machines, source),
        runs=runs,
        gets=gets,
        puts=puts,
    )


def makespan(jobs: npt.ArrayLike, lanes: int) -> float:
    """When the last of some jobs ends, each taken in turn by the lane that is free first.

    Millions of jobs that take as long as their neighbours are reckoned with in rounds.
    """
    seconds = np.asarray(jobs, float)
    starts = np.flatnonzero(np.diff(seconds, prepend=np.nan))
    counts = np.diff(starts, append=len(seconds))
    free = [0.0] * lanes
    for each, count in zip(seconds[starts].tolist(), counts.tolist(), strict=True):
        left = count
        while left:
            if left >= lanes and max(free) - free[0] <= each:  # every lane takes one a round
                rounds, left = divmod(left, lanes)
                free = [end + rounds * each for end in free]
            for _ in range(min(left, lanes)):
                heapq.heapreplace(free, free[0] + each)
                left -= 1
    return max(free)


def _requests(work: Work, fetched: float) -> tuple[int, int]:
    gets = 0
    if fetched:
        gets = max(len(work.files), round(fetched / PIECE_BYTES) if work.in_pieces else 0)
    if not work.uploads:
        return gets, 0
    parts = len(work.files)
    second = work.second
    if second is not None:  # each part of the first stage puts its runs and their record
        gets += second.ranges_of_runs + parts
        puts = second.runs + parts
        if second.digests:  # and hashes; a range of them gives two files, a part reads twice of one
            gets += second.ranges * (parts + 2 * second.parts)
            puts += parts + 2 * second.ranges + second.parts
        parts = second.parts
    else:
        puts = 0
    return gets, puts + round(work.shards) + REQUESTS_A_PART * parts


def _scratch(work: Work, machines: Machines, source: float) -> float:
    """The most that work in progress takes on a host."""
    largest = max(work.files, default=0)
    in_hand = machines.workers + PARTS_AHEAD + (machines.workers if work.uploads else 0)
    in_hand = min(in_hand, -(-len(work.files) // machines.hosts))
    held = work.stored + work.documents_bytes
    if work.second is not None:  # in the first stage runs, which are not compressed
        held = max(held, work.second.bytes + work.second.digests)
    packed = held / max(source, 1) * largest
    waiting = min(AHEAD_BYTES, PARTS_AHEAD * largest)
    merging = 0.0
    if work.second is not None and work.second.merged:  # beside what it is merged of
        merging = min(machines.workers, in_hand) * work.second.bytes / max(source, 1) * largest
    files = (min(machines.workers, in_hand) * largest + waiting) * work.fetched_a_byte
    return in_hand * packed + merging + files
