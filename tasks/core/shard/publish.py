"""Making a dataset whole: merged indexes, the tokenizer, and last of all the manifest."""

from collections.abc import Callable, Iterable, Mapping

from streaming_ext.base.errors import DatasetError
from streaming_ext.format.duplicates import duplicates_path
from streaming_ext.format.layout import (
    MANIFEST,
    SHUFFLE_FOLDER,
    documents_path,
    record_path,
)
from streaming_ext.format.manifest import KeptDigests, Manifest, kept_indexes
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.store import Storage
from streaming_ext.writing.publish import publish_splits, put_tokenizer
from tasks.core.build.build import Whole
from tasks.core.reading.dataset_files import read_records
from tasks.core.shard.run_plan import RunPlan


def files_of_part(part: int) -> tuple[str, ...]:
    """Paths of the files of a part but for its shards."""
    return record_path(part), documents_path(part), duplicates_path(part)


def beside_parts(manifest: Manifest) -> list[FileRecord]:
    """What a dataset holds beside its parts and their records: publishing makes all of it."""
    indexes = [split.index for split in manifest.splits.values()]
    return [
        *indexes,
        *manifest.tokenizer_files,
        *tables_of(manifest),
        *digests_of(manifest),
        *of_generations(manifest),
    ]


def tables_of(manifest: Manifest) -> list[FileRecord]:
    """The tables of sources of a shuffled dataset, of each of its generations."""
    summaries = [*(each.shuffled for each in manifest.generations), manifest.shuffled]
    return [summary.sources for summary in summaries if summary is not None]


def digests_of(manifest: Manifest) -> list[FileRecord]:
    """The hashes of the texts of a dataset without copies, of all generations."""
    return [file for each in manifest.digests for file in each.files]


def of_generations(manifest: Manifest) -> list[FileRecord]:
    """What an extended dataset holds so that each of its generations can be read."""
    if not manifest.generations:
        return []
    kept = kept_indexes(manifest.splits)
    for each in manifest.generations:
        kept += [each.manifest, *each.kept_indexes]
    return list(dict.fromkeys(kept))  # an index may be that of several generations


def publish(
    plan: RunPlan, storage: Storage, *, tell: Callable[[str], None] = lambda words: None
) -> Whole:
    """Put what makes the recorded parts one dataset, but for the manifest.

    The records are read back from the output, so that what was removed meanwhile is noticed.

    Args:
        plan: of the run.
        storage: where it goes.
        tell: called with what is waited for now, in a few words.

    Raises:
        DatasetError: a part has no record.
        StorageError: the output is full, gone or not writable, or lost what was put there.
    """
    tell("reading the records")
    parts = recorded_parts(plan, storage)
    tell("putting the indexes")
    splits = publish_splits(plan.spec, parts, storage)
    tell("putting the tokenizer")
    manifest = Manifest(
        spec=plan.spec,
        parts=tuple(part.summary() for part in parts),
        splits=splits,
        tokenizer_files=tuple(
            put_tokenizer(plan.tokenizer_folder, plan.spec.tokenizer.kind, storage)
        ),
        share=plan.share,
        shuffled=None if plan.merge_input is None else plan.merge_input.summary,
        digests=digests_of_run(plan),
    )
    return whole(manifest, parts)


def whole(
    manifest: Manifest, records: Iterable[PartRecord], *, behind: Mapping[str, bytes] | None = None
) -> Whole:
    """What makes the recorded parts one dataset.

    Args:
        manifest: of it.
        records: of its parts.
        behind: files that follow the manifest.
    """
    behind = behind or {}
    files = [file for record in records for file in record.files()]
    files += [part.record for part in manifest.parts]
    files += [file for file in beside_parts(manifest) if file.path not in behind]
    sizes = {file.path: file.size for file in files}
    return Whole(MANIFEST, to_json(manifest), sizes, behind)


def digests_of_run(plan: RunPlan) -> tuple[KeptDigests, ...]:
    """The hashes of the texts that a run without copies made."""
    made = None if plan.merge_input is None else plan.merge_input.digests
    return () if made is None else (made,)


def remove_runs(storage: Storage, tell: Callable[[str], None]) -> None:
    """Remove what the first phase of a run left for the second one."""
    tell("removing the runs of the first phase")
    for path in storage.list(SHUFFLE_FOLDER):
        storage.remove(path)


def recorded_parts(plan: RunPlan, storage: Storage) -> list[PartRecord]:
    """The records of all parts of a run, read back from the output.

    Raises:
        DatasetError: one is gone.
        ConfigMismatchError: one is of another configuration.
    """
    parts = all_recorded(storage, len(plan.parts))
    for part in parts:  # whatever else wrote here meanwhile
        part.spec.require_same(plan.spec, where=f"{storage}/{record_path(part.part)}")
    return parts


def all_recorded(storage: Storage, count: int) -> list[PartRecord]:
    """The records of so many parts, read back from an output.

    Raises:
        DatasetError: one is gone.
    """
    records = read_records(storage)
    if missing := [part for part in range(count) if part not in records]:
        raise DatasetError(
            f"{storage}: the records of parts {missing[:5]} are gone; something removed them "
            "during the run. Run the same command again."
        )
    return [records[part] for part in range(count)]
