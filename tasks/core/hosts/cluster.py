"""The files by which the hosts of a run communicate, on the dataset's storage, which all reach.

Below `runs/RUN/`:

    plan.json       the plan, which every partition reads
    parent.json     the sign of life of the run that plans and publishes
    00003-1.json    the sign of life of attempt 1 at partition 3, with its progress

Each sign is put again every few seconds with a higher number. A reader times on its own clock when
the number changes, so the clocks of the hosts need not agree.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from streaming_ext.base.errors import (
    ConfigMismatchError,
    NotADatasetError,
    StoppedError,
    StorageError,
    TokenizerError,
)
from streaming_ext.format.layout import RUNS_FOLDER, TOKENIZER_FOLDER
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import from_json, to_json
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.store.patience import seconds_of
from streaming_ext.text.parts import Part
from streaming_ext.text.tokenizer.load import TOKENIZER_FILES, open_saved
from streaming_ext.writing.publish import put_tokenizer
from tasks.core.engine.output_files import all_recorded, lost_files
from tasks.core.options import EngineChoice, Execution
from tasks.core.reading.dataset_files import read_records, recorded_sizes
from tasks.core.reporting.progress import WorkingFile
from tasks.core.reporting.report import FailedFile, PartTimes, ReportedCounts, installed_versions
from tasks.core.shard.run_plan import PhaseName, RunPlan
from tasks.core.shard.shard_build import ShardBuild
from tasks.core.shard.sources import balanced_groups
from tasks.core.shuffle.spills import (
    MergeInput,
    SpillRecord,
    read_spill_records,
    shard_bytes,
)
from tasks.core.workers.messages import Failure, Message

BEAT_SECONDS = 2.0
SILENCE_VARIABLE = "SHARDMILL_SILENCE"
_SILENT_SECONDS = 20.0


class ParentSign(Message):
    """The sign that the parent run lives, with the current attempt at each partition."""

    beat: int
    attempts: tuple[int, ...]
    stopped: bool = False


class PartitionSign(Message):
    """The sign that a partition lives, with its progress.

    Attributes:
        ended: True if the partition did all that it could.
        stopped: True if it was given up before that; none of its work runs any more.
        fault: the error that ended it early, if every other partition would meet it too.
    """

    beat: int
    host: str
    in_hand: tuple[WorkingFile, ...] = ()
    done: tuple[PartTimes, ...] = ()
    failed: tuple[FailedFile, ...] = ()
    ended: bool = False
    stopped: bool = False
    fault: Failure | None = None


def run_folder(run: str) -> str:
    """Return the folder of the files by which the hosts of a run communicate."""
    return f"{RUNS_FOLDER}/{run}"


def plan_path(run: str) -> str:
    """Return the path of the shared plan."""
    return f"{run_folder(run)}/plan.json"


def parent_path(run: str) -> str:
    """Return the path of the parent's sign of life."""
    return f"{run_folder(run)}/parent.json"


def partition_path(run: str, partition: int, attempt: int) -> str:
    """Return the path of a partition's sign of life."""
    return f"{run_folder(run)}/{partition:05}-{attempt}.json"


class Heartbeat:
    """A thread that puts a sign every few seconds until the block ends.

    Args:
        storage: the storage of the dataset.
        path: the path of the sign.
        sign: a function that makes the sign from the number of the beat.
    """

    def __init__(self, storage: Storage, path: str, sign: Callable[[int], Message]) -> None:
        self._storage = storage
        self._path = path
        self._sign = sign
        self._beats = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="shardmill-heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(BEAT_SECONDS)

    def beat(self) -> None:
        """Put the sign now, with the next number.

        Raises:
            StorageError: it cannot be put.
        """
        with self._lock:
            self._beats += 1
            self._storage.put(self._path, to_json(self._sign(self._beats)))

    def beat_if_possible(self) -> None:
        """Put the sign now; ignore an error of the storage, which the work itself will report."""
        with suppress(StorageError):
            self.beat()

    def _keep(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self.beat_if_possible()


class Silence:
    """The time for which another host's sign has not changed; `now` is on the monotonic clock.

    Attributes:
        limit: the seconds without a change after which that host counts as lost.

    Raises:
        UsageError: the environment variable for the limit is not a valid number.
    """

    def __init__(self, now: float) -> None:
        self.limit = seconds_of(SILENCE_VARIABLE, _SILENT_SECONDS, least=3 * BEAT_SECONDS)
        self._beat: int | None = None
        self._changed = now

    def hear(self, beat: int | None, now: float) -> float:
        """Return the seconds for which the sign has not changed; `beat` is its current number."""
        if beat != self._beat:
            self._beat, self._changed = beat, now
        return now - self._changed

    def listen_anew(self, now: float) -> None:
        """Restart the time of silence, as the sign could not be read."""
        self._changed = now


# Packages whose versions may change the bytes of the output; pyarrow contains the codecs.
_MUST_AGREE = ("shardmill", "gigatoken", "tiktoken", "tokenizers", "sentencepiece", "pyarrow")


class SharedPlan(Message):
    """The plan that every partition of a run reads.

    Attributes:
        workers, scratch: the options of `Execution` that the user gave; each host has its own
            defaults.
        engine, check_sources: see `RunPlan`.
        parts: all parts; the index of a part is its number.
        partitions: the numbers of the parts of each partition.
        versions: the versions of the parent run's packages.
        phase, merge_input, first_part, first_source: see `RunPlan`.
    """

    workers: int | None
    scratch: str | None
    engine: EngineChoice | None
    check_sources: bool
    spec: DatasetSpec
    parts: tuple[Part, ...]
    partitions: tuple[tuple[int, ...], ...]
    versions: dict[str, str]
    phase: PhaseName = "shard"
    first_part: int = 0
    first_source: int = 0
    merge_input: MergeInput | None = None

    def execution(self, workers: int | None = None) -> Execution:
        """Return the `Execution` options for this host.

        Args:
            workers: a number of workers that overrides the one that the user gave.
        """
        given: dict[str, Any] = {"workers": workers or self.workers, "scratch": self.scratch}
        return Execution(**{name: value for name, value in given.items() if value is not None})


def put_shared_plan(plan: RunPlan, storage: Storage, run: str, count: int) -> SharedPlan:
    """Put the plan and the tokenizer on the storage, and remove the files of earlier runs.

    Raises:
        StorageError: it cannot be put.
    """
    for path in storage.list(RUNS_FOLDER):
        if path.count("/") > 1:
            storage.remove(path)
    put_tokenizer(plan.tokenizer, storage)
    sizes = [plan.parts[part].size for part in plan.todo]
    groups = balanced_groups(sizes, min(count, len(sizes)))
    shared = SharedPlan(
        workers=plan.config.workers if "workers" in plan.config.model_fields_set else None,
        scratch=plan.config.scratch,
        engine=plan.engine,
        check_sources=plan.check_sources,
        spec=plan.spec,
        parts=plan.parts,
        partitions=tuple(tuple(plan.todo[number] for number in group) for group in groups),
        versions=installed_versions(),
        phase=plan.phase,
        first_part=plan.first_part,
        first_source=plan.first_source,
        merge_input=plan.merge_input,
    )
    storage.put(plan_path(run), to_json(shared))
    return shared


def read_plan(storage: Storage, run: str) -> SharedPlan:
    """Read the shared plan of a run.

    Raises:
        StoppedError: the run is over.
        NotADatasetError: this host sees another disk.
        ConfigMismatchError: this host has other versions of packages than the parent run.
    """
    try:
        shared = from_json(SharedPlan, storage.read(plan_path(run)), where=plan_path(run))
    except FileNotFoundError as error:
        if storage.list(TOKENIZER_FOLDER):  # put before the plan, and never removed
            raise StoppedError("the parent run is over") from error
        raise NotADatasetError(
            f"{storage} holds nothing of this run. The output must lie where all hosts reach it."
        ) from error
    installed = installed_versions()
    differences = [
        f"{name}: {shared.versions.get(name)} at the parent run, {installed.get(name)} here"
        for name in _MUST_AGREE
        if shared.versions.get(name) != installed.get(name)
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
    config: Execution,
    storage: Storage,
    parts: Sequence[int],
    scratch: Path,
) -> RunPlan:
    """Return the plan for this host's parts that are not recorded yet; save the tokenizer.

    Args:
        shared: the plan of the run.
        config: the `Execution` options of this host.
        storage: the storage of the dataset.
        parts: the parts of this host.
        scratch: an empty folder on this host.

    Raises:
        TokenizerError: the output holds another tokenizer.
    """
    sizes = storage.list()
    done = {
        part
        for part, record in _records(storage, shared.phase, parts).items()
        if not lost_files(sizes, recorded_sizes(record.files()))
    }
    (folder := scratch / TOKENIZER_FOLDER).mkdir()
    for name in TOKENIZER_FILES[shared.spec.tokenizer.kind]:
        (folder / name).write_bytes(storage.read(f"{TOKENIZER_FOLDER}/{name}"))
    tokenizer = open_saved(folder)
    if tokenizer.fingerprint != shared.spec.tokenizer.fingerprint:
        raise TokenizerError(
            f"The tokenizer in {storage} has the fingerprint {tokenizer.fingerprint}, the run's "
            f"has {shared.spec.tokenizer.fingerprint}. Does another run write there?"
        )
    return ShardBuild(
        config=config,
        kind="shard",
        engine=shared.engine,
        check_sources=shared.check_sources,
        spec=shared.spec,
        tokenizer=tokenizer,
        parts=shared.parts,
        todo=tuple(part for part in parts if part not in done),
        published=False,
        scratch=scratch,
        phase=shared.phase,
        first_part=shared.first_part,
        first_source=shared.first_source,
        merge_input=shared.merge_input,
    )


def part_times(storage: Storage, plan: RunPlan, parts: Sequence[int]) -> Iterator[PartTimes]:
    """Yield the counts in the records of parts whose host could not report them.

    Raises:
        DatasetError: a part has no record.
    """
    records = _records(storage, plan.phase, parts) if parts else {}
    for record in all_recorded(records, parts, storage):
        yield PartTimes(**ReportedCounts.of(record).model_dump(), shard_bytes=shard_bytes(record))


def _records(
    storage: Storage, phase: PhaseName, parts: Sequence[int]
) -> Mapping[int, PartRecord | SpillRecord]:
    return read_spill_records(storage, parts) if phase == "sort" else read_records(storage, parts)
