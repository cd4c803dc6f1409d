"""Publishing a dataset: merged indexes, the tokenizer, and last of all the manifest."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from streaming_ext.base.errors import DatasetError
from streaming_ext.format.layout import MANIFEST, index_path, record_path
from streaming_ext.format.manifest import Manifest, kept_indexes
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.store import Storage
from streaming_ext.writing.publish import (
    merged_index,
    publish_splits,
    put_tokenizer,
    require_documents,
    split_indexes,
)
from tasks.core.engine.build import Published
from tasks.core.engine.output_files import all_recorded
from tasks.core.reading.dataset_files import (
    added_before,
    beside_parts,
    read_records,
    recorded_sizes,
)
from tasks.core.shard.run_plan import BaseDataset, RunPlan, put_again
from tasks.core.shuffle.spills import MergeInput


def publish(
    plan: RunPlan, storage: Storage, *, on_status: Callable[[str], None] = lambda words: None
) -> Published:
    """Put everything that makes the recorded parts one dataset, but for the manifest.

    The records are read back from the output, so that what was removed meanwhile is noticed.

    Args:
        plan: the plan of the run.
        storage: the storage of the dataset.
        on_status: called with what is done next.

    Raises:
        DatasetError: a part has no record, or the dataset is not what its manifest says.
        SourceError: a source has no text, or no document is left.
        StorageError: the output is full, missing or not writable, or lost a file.
    """
    on_status("reading the records")
    records = recorded_parts(plan, storage)
    on_status("putting the indexes")
    if plan.base is not None:
        require_documents(records[plan.first_part :], str(storage), all_parts=False)
        return _next_generation(plan, plan.base, records, storage)
    splits = publish_splits(plan.spec, records, storage)
    on_status("putting the tokenizer")
    manifest = Manifest(
        spec=plan.spec,
        parts=tuple(record.summary() for record in records),
        splits=splits,
        tokenizer_files=tuple(put_tokenizer(plan.tokenizer, storage)),
        node_partition=plan.node_partition,
        added=added_before(storage),
        **_of_two_phases(plan),
    )
    return published_dataset(manifest, records)


def _of_two_phases(plan: RunPlan) -> dict[str, Any]:
    """The fields of a manifest that the second phase adds."""
    merged = plan.merge_input or MergeInput()
    return {"shuffled": merged.summary, "digests": (merged.digests,) if merged.digests else ()}


def _next_generation(
    plan: RunPlan, base: BaseDataset, records: list[PartRecord], storage: Storage
) -> Published:
    """Put the indexes of the next generation, and keep what it replaces.

    Readers see one generation or the other: the manifest is put in one step, and names indexes
    that nothing overwrites. The index that stock readers know follows it. If no part was added,
    the last steps of an extension that was killed are done again.
    """
    old, spec = base.manifest, plan.spec
    made = split_indexes(spec, records)
    indexes = {split: index for split, (_, index) in made.items()}
    manifest = old
    if len(records) > len(old.parts):
        added = _of_two_phases(plan)
        manifest = Manifest(
            spec=spec,
            parts=tuple(record.summary() for record in records),
            splits={split: summary for split, (summary, _) in made.items()},
            tokenizer_files=old.tokenizer_files,
            generations=(*old.generations, base.generation),
            shuffled=added["shuffled"],
            digests=(*old.digests, *added["digests"]),
            added=old.added,
        )
        data = storage.read(MANIFEST)
        if data != to_json(manifest):  # else storage failed, and publishing is tried again
            if FileRecord.of(MANIFEST, data) != base.file:
                raise DatasetError(
                    f"{storage}/{MANIFEST} was changed during the run. Run the same command again."
                )
            storage.put(base.generation.manifest.path, data)
    base.put_lost_tokenizer(plan.tokenizer, storage)
    _put_older(manifest, records, storage)
    if manifest.generations:
        for split, file in zip(manifest.splits, kept_indexes(manifest.splits), strict=True):
            storage.put(file.path, indexes[split])
    return published_dataset(
        manifest, records, after={index_path(split): index for split, index in indexes.items()}
    )


def _put_older(manifest: Manifest, parts: list[PartRecord], storage: Storage) -> None:
    """Put what a dataset holds of older generations, and lacks.

    Raises:
        CorruptDatasetError: a lost manifest cannot be made again.
    """
    sizes = storage.list()
    for number, each in enumerate(manifest.generations):
        for split, file in zip(each.splits, kept_indexes(each.splits), strict=True):
            if sizes.get(file.path) != file.size:
                index = merged_index(split, parts[: each.parts], manifest.spec)
                put_again(storage, file, index)
        if sizes.get(each.manifest.path) != each.manifest.size:
            put_again(storage, each.manifest, to_json(manifest.before(number)))


def published_dataset(
    manifest: Manifest, records: Iterable[PartRecord], *, after: Mapping[str, bytes] | None = None
) -> Published:
    """Everything that makes the recorded parts one dataset.

    Args:
        manifest: the manifest of the dataset.
        records: the records of the parts.
        after: files that follow the manifest.
    """
    after = after or {}
    files = [file for record in records for file in record.files()]
    files += [part.record for part in manifest.parts]
    files += [file for file in beside_parts(manifest) if file.path not in after]
    return Published(MANIFEST, to_json(manifest), recorded_sizes(files), after)


def recorded_parts(plan: RunPlan, storage: Storage) -> list[PartRecord]:
    """The records of all parts of a run, read back from the output.

    Raises:
        DatasetError: one is missing.
        ConfigMismatchError: one is of another configuration.
    """
    parts = all_recorded(read_records(storage), range(len(plan.parts)), storage)
    for part in parts:  # another run may have written meanwhile
        part.spec.require_same(plan.spec, where=f"{storage}/{record_path(part.part)}")
    return parts
