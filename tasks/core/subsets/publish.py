"""Making a subset whole: indexes, the tokenizer, and last of all the manifest."""

from collections.abc import Callable

from streaming_ext.dataset.layout import MANIFEST, index_path
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.schema import FileRecord, to_json
from tasks.core.moving.begun import BEGUN
from tasks.core.moving.job import Move, Unit
from tasks.core.moving.move import move_unit
from tasks.core.outputs.publish import (
    all_recorded,
    filled_splits,
    merged_index,
    summarize_split,
)
from tasks.core.outputs.whole import put_manifest, require_all_there
from tasks.core.storage import Storage
from tasks.core.subsets.plan import SubsetPlan


def publish(
    plan: SubsetPlan, output: Storage, *, tell: Callable[[str], None] = lambda words: None
) -> None:
    """Write what makes the recorded parts one dataset.

    Raises:
        DatasetError: a part has no record.
        StorageError: the output is full, gone or not writable, or lost what was put there.
    """
    tell("reading the records")
    parts = all_recorded(output, len(plan.parts))
    tell("putting the indexes")
    splits = {}
    for split in filled_splits(plan.spec, parts):
        index = merged_index(split, parts, plan.spec)
        output.put(index_path(split), index)
        splits[split] = summarize_split(split, parts, FileRecord.of(index_path(split), index))
    tell("putting the tokenizer")
    root = str(plan.dataset)
    moves = tuple(Move.of(root, file) for file in plan.original.tokenizer_files)
    move_unit(Unit(moves=moves), output, plan.scratch / "rest", read=True)
    manifest = Manifest(
        spec=plan.spec,
        parts=tuple(part.summary() for part in parts),
        splits=splits,
        tokenizer_files=plan.original.tokenizer_files,
        share=plan.original.share,
        merged=plan.members,
    )
    tell("looking whether all of it is there")
    require_all_there(manifest, parts, output)
    tell("putting the manifest")
    put_manifest(output, MANIFEST, to_json(manifest))
    output.remove(BEGUN)
