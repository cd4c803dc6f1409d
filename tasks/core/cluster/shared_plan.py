"""The plan of a run on several hosts: put on the storage by the parent run, read by each host."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from streaming_ext.dataset.layout import RUNS_FOLDER, TOKENIZER_FOLDER
from streaming_ext.dataset.reading import read_record
from streaming_ext.dataset.record import PartRecord
from streaming_ext.dataset.schema import from_json, to_json
from streaming_ext.errors import (
    ConfigMismatchError,
    DatasetError,
    NotADatasetError,
    TokenizerError,
)
from streaming_ext.text.parts.part import sizes_of
from streaming_ext.text.tokenizer.code_points import UnsafeCodePoints
from streaming_ext.text.tokenizer.prepared import read_unsafe_code_points, write_unsafe_code_points
from streaming_ext.text.tokenizer.tokenizer import TOKENIZER_FILES, open_saved
from tasks.core.cluster.dealing import split_evenly
from tasks.core.cluster.messages import SharedPlan, plan_path
from tasks.core.config import ShardConfig
from tasks.core.outputs.publish import put_tokenizer
from tasks.core.planning.run_plan import RunPlan, StageName
from tasks.core.planning.there import without_lost_files
from tasks.core.reading.records import read_records
from tasks.core.reporting.report import PartCounts, PartTimes, installed_versions
from tasks.core.shuffle.arrange import read_run_records
from tasks.core.shuffle.numbering import first_sources
from tasks.core.shuffle.run_record import RunRecord, run_record_of, run_record_path
from tasks.core.storage import Storage

# Packages whose version may show in the bytes that they make; pyarrow brings the codecs.
_MUST_AGREE = ("shardmill", "gigatoken", "tiktoken", "tokenizers", "pyarrow")


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
        parts=plan.parts,
        partitions=tuple(split_evenly(sizes_of(plan.parts), plan.todo, count)),
        unsafe=None if unsafe is None else unsafe.ranges,
        versions=installed_versions(),
        stage=plan.stage,
        first_part=plan.first_part,
        first_source=plan.first_sources[plan.first_part] if plan.first_sources else 0,
        gathering=plan.gathering,
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
    done = _recorded(storage, shared.stage, parts) if resumed else set()
    plan = RunPlan(
        config=config,
        spec=shared.spec,
        parts=shared.parts,
        todo=tuple(part for part in parts if part not in done),
        published=False,
        scratch=scratch,
        stage=shared.stage,
        first_part=shared.first_part,
        first_sources=()
        if shared.spec.shuffle is None
        else first_sources(shared.parts, shared.first_part, shared.first_source),
        gathering=shared.gathering,
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
        record: PartRecord | RunRecord
        try:
            if plan.stage == "scatter":
                record = run_record_of(storage.read(run_record_path(part)), where=str(storage))
            else:
                record = read_record(storage, part)
        except FileNotFoundError as error:
            raise DatasetError(
                f"{storage}: part {part:05} was told to be done, but has no record. Run again."
            ) from error
        lists = record.lists if isinstance(record, PartRecord) else record.digest_files
        yield PartTimes(
            **PartCounts.of(record).model_dump(),
            shard_bytes=sum(file.size for file in record.files() if file not in lists),
            tokenize_seconds=0.0,
            write_seconds=0.0,
        )


def _recorded(storage: Storage, stage: StageName, parts: Iterable[int]) -> set[int]:
    """Those of the parts that are recorded with all their files."""
    if stage == "scatter":
        runs = read_run_records(storage, parts)
        return set(without_lost_files(storage, runs, storage.list(), published=False))
    return set(
        without_lost_files(storage, read_records(storage, parts), storage.list(), published=False)
    )
