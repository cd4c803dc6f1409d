"""Making an extension count: what it replaces kept beside it, the manifest put in one step."""

from collections.abc import Callable

from streaming_ext.base.errors import DatasetError, command
from streaming_ext.format.layout import MANIFEST, generation_path, index_path
from streaming_ext.format.manifest import Generation, Manifest, kept_indexes
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.store import Storage
from streaming_ext.writing.publish import filled_splits, merged_index, summarize_split
from tasks.core.build.build import Whole
from tasks.core.shard.own_tokenizer import put_lost_tokenizer
from tasks.core.shard.publish import digests_of_run, recorded_parts, whole
from tasks.core.shard.run_plan import Parent, RunPlan


def publish_extension(
    plan: RunPlan,
    parent: Parent,
    storage: Storage,
    *,
    tell: Callable[[str], None] = lambda words: None,
) -> Whole:
    """Put the next generation in place, after what it replaces was put beside it.

    Readers see one generation or the other: the manifest is put in one step, and names indexes
    that nothing overwrites. The index that stock readers know follows it. Where no part was added,
    the last steps of an extension that was killed there are done again.

    Args:
        plan: of the run.
        parent: the generation that is extended.
        storage: the dataset's.
        tell: called with what is waited for now.

    Raises:
        DatasetError: the dataset is not what its manifest says.
        StorageError: the dataset is full, gone or not writable, or lost what was put there.
    """
    tell("reading the records")
    parts = recorded_parts(plan, storage)
    tell("putting the indexes")
    old, spec = parent.manifest, plan.spec
    before = parts[: len(old.parts)]
    for split, summary in old.splits.items():
        index = merged_index(split, before, spec)
        if FileRecord.of(summary.index.path, index) != summary.index:
            raise DatasetError(
                f"{storage}: the records do not make the index of {split} that {MANIFEST} lists. "
                f"{command('verify', storage)} tells all that is wrong."
            )
    own = {split: merged_index(split, parts, spec) for split in filled_splits(spec, parts)}
    if len(parts) == len(old.parts):
        manifest, is_put = old, True
    else:
        generation = _generation(parent)
        manifest = Manifest(
            spec=spec,
            parts=tuple(part.summary() for part in parts),
            splits={
                split: summarize_split(split, parts, FileRecord.of(index_path(split), index))
                for split, index in own.items()
            },
            tokenizer_files=old.tokenizer_files,
            shuffled=None if plan.merge_input is None else plan.merge_input.summary,
            generations=(*old.generations, generation),
            digests=(*old.digests, *digests_of_run(plan)),
        )
        data = storage.read(MANIFEST)
        is_put = data == to_json(manifest)  # before storage failed, and publishing is tried again
        if not is_put and FileRecord.of(MANIFEST, data) != parent.file:
            raise DatasetError(
                f"{storage}/{MANIFEST} was changed during the run. Run the same command again."
            )
        if not is_put:
            storage.put(generation.manifest.path, data)
    put_lost_tokenizer(old, plan.tokenizer_folder, storage)
    _put_older(manifest, parts, storage)
    if manifest.generations:
        for split, file in zip(manifest.splits, kept_indexes(manifest.splits), strict=True):
            storage.put(file.path, own[split])
    return whole(manifest, parts, behind={index_path(split): own[split] for split in own})


def _put_older(manifest: Manifest, parts: list[PartRecord], storage: Storage) -> None:
    """Put the indexes of the last generation before a manifest, and what older ones lost.

    Raises:
        DatasetError: a lost manifest cannot be made again.
    """
    sizes = storage.list()
    for number, each in enumerate(manifest.generations):
        last = each is manifest.generations[-1]
        for split, file in zip(each.splits, each.kept_indexes, strict=True):
            if last or sizes.get(file.path) != file.size:
                storage.put(file.path, merged_index(split, parts[: each.parts], manifest.spec))
        if sizes.get(each.manifest.path) != each.manifest.size:
            storage.put(each.manifest.path, _manifest_of(manifest, number, storage))


def _manifest_of(newest: Manifest, number: int, storage: Storage) -> bytes:
    """The manifest of an older generation, made again of the newest one."""
    each = newest.generations[number]
    made = Manifest(
        spec=newest.spec,
        parts=newest.parts[: each.parts],
        splits=each.splits,
        tokenizer_files=newest.tokenizer_files,
        shuffled=each.shuffled,
        generations=newest.generations[:number],
        digests=newest.digests[: number + 1],
    )
    data = to_json(made)
    if FileRecord.of(each.manifest.path, data) != each.manifest:
        raise DatasetError(
            f"{storage} lost {each.manifest.path}, which cannot be made again. Put it back from a "
            "copy of the dataset."
        )
    return data


def _generation(parent: Parent) -> Generation:
    file = parent.file.model_copy(update={"path": generation_path(parent.file.xxh128)})
    manifest = parent.manifest
    return Generation(
        manifest=file,
        parts=len(manifest.parts),
        splits=manifest.splits,
        shuffled=manifest.shuffled,
    )
