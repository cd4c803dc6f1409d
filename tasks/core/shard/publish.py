"""Publishing of a dataset: merged indexes, the tokenizer, and last the manifest."""

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
    """Put the files that make the recorded parts one dataset, except for the manifest.

    The records are read back from the output, so that a record that was removed is noticed.

    Args:
        plan: the plan of the run.
        storage: the storage of the dataset.
        on_status: a function that is called with a description of each next step.

    Raises:
        DatasetError: a part has no record, or the manifest was changed during the run.
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
    """Return the fields of a manifest that the second phase adds."""
    merged = plan.merge_input or MergeInput()
    return {"shuffled": merged.summary, "digests": (merged.digests,) if merged.digests else ()}


def _next_generation(
    plan: RunPlan, base: BaseDataset, records: list[PartRecord], storage: Storage
) -> Published:
    """Put the indexes of the next generation, and keep the manifest and indexes that it replaces.

    Readers see one generation or the other: the manifest is put in one step, and its indexes are
    never overwritten. `index.json`, which stock readers open, follows it. If no part was added,
    the last steps of a killed extension are done again.
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
        if data != to_json(manifest):  # if equal, this is a retry
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
    """Put the missing manifests and indexes of older generations.

    Raises:
        CorruptDatasetError: a lost file cannot be made again.
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
    """Return the manifest and the list of files that make the recorded parts one dataset.

    Args:
        manifest: the manifest of the dataset.
        records: the records of the parts.
        after: the content of files that are put after the manifest, by their paths.
    """
    after = after or {}
    files = [file for record in records for file in record.files()]
    files += [part.record for part in manifest.parts]
    files += [file for file in beside_parts(manifest) if file.path not in after]
    return Published(MANIFEST, to_json(manifest), recorded_sizes(files), after)


def recorded_parts(plan: RunPlan, storage: Storage) -> list[PartRecord]:
    """Read the records of all parts of a run back from the output.

    Raises:
        DatasetError: a record is missing.
        ConfigMismatchError: a record is from another configuration.
    """
    parts = all_recorded(read_records(storage), range(len(plan.parts)), storage)
    for part in parts:  # another run may have written meanwhile
        part.spec.require_same(plan.spec, where=f"{storage}/{record_path(part.part)}")
    return parts
