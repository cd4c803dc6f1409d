"""A run on several hosts: what a partition of it must know, and what it tells of itself.

All of it passes over the dataset's storage, below `runs/RUN/`:

    plan.json       what is to be done, the same for every partition
    parent.json     the sign of life of the run that plans and publishes
    00003-1.json    that of partition 3 in its first attempt, with what it has done so far
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from streaming_ext.dataset.layout import RUNS_FOLDER, TOKENIZER_FOLDER
from streaming_ext.dataset.manifest import DatasetSpec, from_json, to_json
from streaming_ext.dataset.reading import read_record
from streaming_ext.errors import (
    ConfigMismatchError,
    DatasetError,
    NotADatasetError,
    StorageError,
    TokenizerError,
)
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.code_points import UnsafeCodePoints
from streaming_ext.text.tokenizer.prepared import read_unsafe_code_points, write_unsafe_code_points
from streaming_ext.text.tokenizer.tokenizer import TOKENIZER_FILES, open_saved
from tasks.core.config import ShardConfig
from tasks.core.outputs.publish import put_tokenizer
from tasks.core.planning.plan import RunPlan, without_lost_files
from tasks.core.reading.records import read_records
from tasks.core.reporting.report import FailedFile, PartCounts, PartTimes, installed_versions
from tasks.core.storage import Storage
from tasks.core.workers.jobs import Failure

# Packages whose version may show in the bytes that they make; pyarrow brings the codecs.
_MUST_AGREE = ("shardmill", "gigatoken", "tiktoken", "tokenizers", "pyarrow")


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SharedPlan(_Message):
    """What every partition of a run knows.

    Attributes:
        config: as the user gave it; what was left out is each host's own, such as its workers.
        sources: URL, size and version of all of them; the index is the part's number.
        partitions: the parts of each.
        unsafe: code points that the fast engine is not trusted with; None leaves it unused.
        versions: of the packages that the parent run has.
    """

    format: Literal[1] = 1
    config: dict[str, Any]
    spec: DatasetSpec
    sources: tuple[tuple[str, int, str | None], ...]
    partitions: tuple[tuple[int, ...], ...]
    unsafe: tuple[tuple[int, int], ...] | None
    versions: dict[str, str]


class ParentSign(_Message):
    """The parent run lives, and counts these attempts of its partitions."""

    beat: int
    attempts: tuple[int, ...]
    stopped: bool = False


class FileInHand(_Message):
    """A file that a partition has begun: its step, and what of it is done so far."""

    part: int
    step: str
    source_bytes: float
    text_bytes: int
    tokens: int


class PartitionSign(_Message):
    """A partition lives, and has done so much.

    Attributes:
        ended: it did what it could; nothing more comes.
        stopped: it was given up before that, and nothing of it runs any more.
        fault: why it ended early, where every other partition would meet the same.
    """

    beat: int
    host: str
    in_hand: tuple[FileInHand, ...] = ()
    done: tuple[PartTimes, ...] = ()
    failed: tuple[FailedFile, ...] = ()
    ended: bool = False
    stopped: bool = False
    fault: Failure | None = None


def run_folder(run: str) -> str:
    """The folder for what passes between the hosts of a run."""
    return f"{RUNS_FOLDER}/{run}"


def plan_path(run: str) -> str:
    """Where the shared plan lies."""
    return f"{run_folder(run)}/plan.json"


def parent_path(run: str) -> str:
    """Where the parent's sign of life lies."""
    return f"{run_folder(run)}/parent.json"


def partition_path(run: str, partition: int, attempt: int) -> str:
    """Where a partition's sign of life lies."""
    return f"{run_folder(run)}/{partition:05}-{attempt}.json"


def split_evenly(sizes: Sequence[int], parts: Iterable[int], count: int) -> list[tuple[int, ...]]:
    """Deal parts out into at most `count` partitions of about the same size, none of them empty.

    The largest goes first, each to the partition that has least (Graham's rule: no partition is
    larger than 4/3 of what is best possible).

    Args:
        sizes: in bytes, of all parts.
        parts: numbers of those that are to be dealt out.
        count: of partitions.
    """
    parts = sorted(parts, key=lambda part: (-sizes[part], part))
    partitions: list[list[int]] = [[] for _ in range(min(count, len(parts)))]
    least = [(0, 0, number) for number in range(len(partitions))]
    for part in parts:
        size, length, number = heapq.heappop(least)
        partitions[number].append(part)
        heapq.heappush(least, (size + sizes[part], length + 1, number))
    return [tuple(sorted(partition)) for partition in partitions]


def put_shared_plan(plan: RunPlan, storage: Storage, run: str, count: int) -> SharedPlan:
    """Put what the partitions need on the storage; what earlier runs left of theirs goes.

    Raises:
        StorageError: it cannot be put.
    """
    for path in storage.list(RUNS_FOLDER):
        if path.count("/") > 1:
            storage.remove(path)
    put_tokenizer(plan, storage)
    unsafe = read_unsafe_code_points(plan.tokenizer_folder)
    shared = SharedPlan(
        config=plan.config.model_dump(mode="json", exclude_unset=True),
        spec=plan.spec,
        sources=tuple((source.url, source.size, source.version) for source in plan.sources),
        partitions=tuple(split_evenly([source.size for source in plan.sources], plan.todo, count)),
        unsafe=None if unsafe is None else unsafe.ranges,
        versions=installed_versions(),
    )
    storage.put(plan_path(run), to_json(shared))
    return shared


def read_plan(storage: Storage, run: str) -> SharedPlan:
    """The plan that a partition is of.

    Raises:
        NotADatasetError: there is none; the run is over, or this host sees another disk.
        ConfigMismatchError: packages of this host are not those of the parent's.
    """
    try:
        shared = from_json(SharedPlan, storage.read(plan_path(run)), where=plan_path(run))
    except FileNotFoundError as error:
        raise NotADatasetError(
            f"{storage}/{plan_path(run)}: there is no such plan. Either the run is over, or this "
            "host sees another disk: the output must lie where all hosts reach it."
        ) from error
    here = installed_versions()
    differences = [
        f"{name}: {shared.versions.get(name)} at the parent run, {here.get(name)} here"
        for name in _MUST_AGREE
        if shared.versions.get(name) != here.get(name)
    ]
    if differences:
        raise ConfigMismatchError(
            "The hosts of a run must make the same bytes, but their packages differ:\n  "
            + "\n  ".join(differences)
            + "\nInstall with the same constraints file on every host."
        )
    return shared


def partition_plan(
    shared: SharedPlan,
    config: ShardConfig,
    storage: Storage,
    parts: Sequence[int],
    scratch: Path,
    *,
    resumed: bool,
) -> RunPlan:
    """The plan for some parts of a run on this host, with its tokenizer on scratch.

    Args:
        shared: the plan of the run.
        config: the run's, with what is this host's own.
        storage: the dataset's.
        parts: to be done here.
        scratch: an empty folder on this host.
        resumed: whether an earlier attempt may have done some of it.

    Raises:
        TokenizerError: what lies in the output is not the run's tokenizer.
    """
    done = _recorded(storage, parts) if resumed else set()
    plan = RunPlan(
        config=config,
        spec=shared.spec,
        sources=tuple(
            SourceFile(url=url, size=size, version=version) for url, size, version in shared.sources
        ),
        todo=tuple(part for part in parts if part not in done),
        published=False,
        scratch=scratch,
    )
    plan.tokenizer_folder.mkdir()
    for name in TOKENIZER_FILES[shared.spec.tokenizer.kind]:
        data = storage.read(f"{TOKENIZER_FOLDER}/{name}")
        (plan.tokenizer_folder / name).write_bytes(data)
    found = open_saved(plan.tokenizer_folder).fingerprint
    if found != shared.spec.tokenizer.fingerprint:
        raise TokenizerError(
            f"The tokenizer in {storage} has the fingerprint {found}, the run's has "
            f"{shared.spec.tokenizer.fingerprint}. Does another run write there?"
        )
    if shared.unsafe is not None:
        write_unsafe_code_points(plan.tokenizer_folder, UnsafeCodePoints(shared.unsafe))
    return plan


def part_times(storage: Storage, plan: RunPlan, parts: Iterable[int]) -> Iterator[PartTimes]:
    """What the records of parts tell, where whoever made them could not.

    Raises:
        DatasetError: a part has no record.
    """
    for part in parts:
        try:
            record = read_record(storage, part)
        except FileNotFoundError as error:
            raise DatasetError(
                f"{storage}: part {part:05} was told to be done, but has no record. Run again."
            ) from error
        yield PartTimes(
            **PartCounts.of(record).model_dump(),
            shard_bytes=sum(s.size for split in record.splits.values() for s in split.shards),
            tokenize_seconds=0.0,
            write_seconds=0.0,
        )


def remove_run_folder(storage: Storage, run: str) -> None:
    """Remove what passed between the hosts; where that fails, the next run does it."""
    with suppress(StorageError):
        for path in storage.list(run_folder(run)):
            storage.remove(path)


def _recorded(storage: Storage, parts: Iterable[int]) -> set[int]:
    """Those of the parts that are recorded with all their files."""
    return set(
        without_lost_files(storage, read_records(storage, parts), storage.list(), published=False)
    )
