"""Making an export whole: heads and indexes, shared files in their place, last the manifest."""

from collections.abc import Callable

from streaming_ext.dataset.layout import EXPORT, SPLITS, Split
from streaming_ext.dataset.schema import FileRecord, to_json
from streaming_ext.errors import StorageError
from tasks.core.exports.contract import Made
from tasks.core.exports.files import WrittenOut
from tasks.core.exports.formats import made_with
from tasks.core.exports.plan import ExportPlan, all_pieces, all_sizes, require_records
from tasks.core.exports.records import (
    BEGUN,
    ExportedPart,
    ExportManifest,
    ExportRecord,
    file_sizes,
    record_path,
)
from tasks.core.outputs.whole import put_manifest
from tasks.core.storage import Storage
from tasks.core.storage.uploads import uploads


def publish(
    plan: ExportPlan, storage: Storage, *, tell: Callable[[str], None] = lambda words: None
) -> ExportManifest:
    """Write what makes the recorded parts one export.

    Args:
        plan: of the run.
        storage: where it goes.
        tell: called with what is waited for now, in a few words.

    Raises:
        DatasetError: a part has no record.
        StorageError: the output is full, gone or not writable, or lost what was put there.
    """
    tell("reading the records")
    records = require_records(plan, storage)
    ordered = [records[part] for part in range(len(plan.parts))]
    form, assembly = plan.form, plan.assembly
    with uploads(storage) as put:
        tell("putting the indexes")
        out = WrittenOut(plan.scratch / "publish", assembly or plan.scratch, put)
        form.finish(_made(plan, ordered), out)
        for path, size in form.shared().items():
            tell(f"putting {path}")
            file = (assembly or plan.scratch) / path
            if not file.is_file() or file.stat().st_size != size:
                raise StorageError(f"{plan.scratch} lost some of {path}. Run again.")
            put(path, file)
    manifest = ExportManifest(
        identity=plan.identity,
        dataset=str(plan.dataset),
        tokenizer=plan.manifest.spec.tokenizer,
        splits=plan.totals,
        parts=tuple(
            ExportedPart(
                part=record.part,
                record=FileRecord.of(record_path(record.part), to_json(record)),
            )
            for record in ordered
        ),
        pieces=tuple(out.pieces),
        made_with=made_with(plan.identity.export),
    )
    if assembly is not None:
        tell("putting the records")
        for record in ordered:
            storage.put(record_path(record.part), to_json(record))
    tell("looking whether all of it is there")
    _require_all_there(manifest, ordered, storage)
    tell("putting the manifest")
    put_manifest(storage, EXPORT, to_json(manifest))
    storage.remove(BEGUN)
    return manifest


def _made(plan: ExportPlan, records: list[ExportRecord]) -> dict[Split, list[Made]]:
    """The parts' own files of each split, in order."""
    return {
        split: [file for record in records for file in record.made.get(split, ())]
        for split in SPLITS
        if split in plan.totals
    }


def _require_all_there(
    manifest: ExportManifest, records: list[ExportRecord], storage: Storage
) -> None:
    sizes = all_sizes(storage)
    wanted = file_sizes(all_pieces(manifest, records))
    wanted |= {part.record.path: part.record.size for part in manifest.parts}
    if lost := [path for path, size in wanted.items() if sizes.get(path) != size]:
        raise StorageError(
            f"{storage} said that it kept {lost[0]}, and does not hold it as written. The export "
            "is not published. Run the same command again."
        )
