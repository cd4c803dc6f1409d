"""Making a dataset whole: merged indexes, the tokenizer, and last of all the manifest."""

from collections.abc import Callable, Iterable

from streaming_ext.dataset.layout import (
    MANIFEST,
    SHUFFLE_FOLDER,
    TOKENIZER_FOLDER,
    Split,
    index_path,
    record_path,
)
from streaming_ext.dataset.manifest import KeptDigests, Manifest, SplitSummary
from streaming_ext.dataset.record import PartRecord
from streaming_ext.dataset.schema import FileRecord, to_json
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import DatasetError
from streaming_ext.text.tokenizer.tokenizer import TOKENIZER_FILES
from tasks.core.outputs.whole import put_manifest, require_all_there
from tasks.core.planning.run_plan import RunPlan
from tasks.core.reading.records import read_records
from tasks.core.storage import Storage


def publish(
    plan: RunPlan, storage: Storage, *, tell: Callable[[str], None] = lambda words: None
) -> Manifest:
    """Write what makes the recorded parts one dataset.

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
    splits = {
        split: _publish_split(split, parts, plan.spec, storage)
        for split in filled_splits(plan.spec, parts)
    }
    tell("putting the tokenizer")
    manifest = Manifest(
        spec=plan.spec,
        parts=tuple(part.summary() for part in parts),
        splits=splits,
        tokenizer_files=tuple(put_tokenizer(plan, storage)),
        share=plan.share,
        shuffled=None if plan.gathering is None else plan.gathering.summary,
        digests=digests_of_run(plan),
    )
    tell("looking whether all of it is there")
    require_all_there(manifest, parts, storage)
    tell("putting the manifest")
    put_manifest(storage, MANIFEST, to_json(manifest))
    if plan.gathering is not None:
        remove_runs(storage, tell)
    return manifest


def digests_of_run(plan: RunPlan) -> tuple[KeptDigests, ...]:
    """The hashes of the texts that a run without copies made."""
    made = None if plan.gathering is None else plan.gathering.digests
    return () if made is None else (made,)


def remove_runs(storage: Storage, tell: Callable[[str], None]) -> None:
    """Remove what the first stage of a run left for the second one."""
    tell("removing the runs of the first stage")
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


def merged_index(split: Split, parts: list[PartRecord], spec: DatasetSpec) -> bytes:
    """The index of a split: the shards of all parts, in the order of the parts."""
    return spec.shard_format.index(shard for part in parts for shard in part.splits[split].shards)


def filled_splits(spec: DatasetSpec, parts: Iterable[PartRecord]) -> list[Split]:
    """The splits that hold a sample: readers take no empty one, so none is published."""
    filled = {name for part in parts for name, split in part.splits.items() if split.shards}
    return [split for split in spec.splits if split in filled]


def summarize_split(split: Split, parts: list[PartRecord], index: FileRecord) -> SplitSummary:
    """The sums over all parts of a split."""
    pieces = [part.splits[split] for part in parts]
    return SplitSummary(
        index=index,
        documents=sum(piece.documents for piece in pieces),
        tokens=sum(piece.tokens for piece in pieces),
        padding=sum(piece.padding for piece in pieces),
        samples=sum(piece.samples for piece in pieces),
        shards=sum(len(piece.shards) for piece in pieces),
    )


def _publish_split(
    split: Split, parts: list[PartRecord], spec: DatasetSpec, storage: Storage
) -> SplitSummary:
    index = merged_index(split, parts, spec)
    storage.put(index_path(split), index)
    return summarize_split(split, parts, FileRecord.of(index_path(split), index))


def put_tokenizer(plan: RunPlan, storage: Storage) -> list[FileRecord]:
    """Put the tokenizer's files beside the parts; returns their records."""
    records = []
    for name in sorted(TOKENIZER_FILES[plan.spec.tokenizer.kind]):
        path, data = f"{TOKENIZER_FOLDER}/{name}", (plan.tokenizer_folder / name).read_bytes()
        storage.put(path, data)
        records.append(FileRecord.of(path, data))
    return records
