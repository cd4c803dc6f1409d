"""What an extension has to do: its parts, numbered behind those that the dataset has."""

from dataclasses import replace
from pathlib import Path

from streaming_ext.dataset.extended.generations import index_file
from streaming_ext.dataset.layout import EXTENDING, MANIFEST, record_path
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.reading import manifest_of
from streaming_ext.dataset.record import PartRecord, PartSummary
from streaming_ext.dataset.schema import FileRecord
from streaming_ext.dataset.spec import TokenizerIdentity
from streaming_ext.errors import ConfigMismatchError, CorruptDatasetError, command
from streaming_ext.text.parts.part import Part, Piece
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.config import ShardConfig
from tasks.core.extending.begun import is_begun
from tasks.core.extending.config import ExtendRunConfig
from tasks.core.extending.extendable import require_extendable
from tasks.core.extending.known_sources import all_pieces, new_sources, pieces_of
from tasks.core.extending.older_sources import older_sources
from tasks.core.extending.own_tokenizer import own_tokenizer
from tasks.core.outputs.whole import beside_parts, digests_of, lost_files, tables_of
from tasks.core.planning.parts import parts_of
from tasks.core.planning.published import has_leftovers
from tasks.core.planning.run_plan import Parent, RunPlan, StageName
from tasks.core.planning.same_sources import require_same_sources
from tasks.core.planning.there import without_lost_files
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.reading.records import read_records
from tasks.core.reporting.report import PartCounts
from tasks.core.shuffle.arrange import read_run_records
from tasks.core.shuffle.gathering import Gathering
from tasks.core.shuffle.numbering import first_sources
from tasks.core.shuffle.run_record import RunRecord
from tasks.core.storage import Storage

_INSTEAD = (
    "the sources of the extension that was begun, or remove extending.json to have it begun anew"
)


def plan_extension(
    config: ShardConfig, storage: Storage, sources: tuple[SourceFile, ...], scratch: Path
) -> tuple[RunPlan, Tokenizer]:
    """What an extension has to do, and the dataset's tokenizer; nothing is written.

    Args:
        config: with all that the dataset was made with.
        storage: the dataset's.
        sources: what to add; those that are in it are left out.
        scratch: folder for work in progress.

    Raises:
        NotADatasetError: there is no published dataset.
        ConfigMismatchError: sources changed, or an extension by others was begun.
        CorruptDatasetError: it lost a file.
        UsageError: it cannot be extended.
        TokenizerError: it lost its tokenizer.
    """
    files = DatasetFiles(storage, storage.list())
    data = files.read_manifest()
    manifest = manifest_of(data, where=f"{storage}/{MANIFEST}")
    require_extendable(storage, manifest)
    instead = config.instead if isinstance(config, ExtendRunConfig) else None
    tokenizer = own_tokenizer(files, manifest, instead)
    asked = config.spec(TokenizerIdentity.model_validate(tokenizer.description()))
    manifest.spec.require_same(asked, where=str(storage))
    parent = Parent(manifest=manifest, file=FileRecord.of(MANIFEST, data))

    known = len(manifest.parts)
    records = read_records(storage)
    own = _of_the_dataset(storage, manifest, records, files)
    if lost := lost_files(files.sizes, [*tables_of(manifest), *digests_of(manifest)]):
        raise CorruptDatasetError(
            f"{storage} lost {', '.join(lost)}, which an extension needs and cannot make again. "
            "Put it back from a copy of the dataset."
        )
    known_sources = older_sources(parent, storage)
    made_of = pieces_of(known_sources) if known_sources else all_pieces(own)
    added = new_sources(storage, made_of, sources, manifest.spec.read_options)
    parts = tuple(_stand_in(summary) for summary in manifest.parts) + tuple(
        replace(part, number=known + part.number)
        for part in (parts_of(added, config) if added else ())
    )
    two_stages = manifest.spec.two_stages
    begun: dict[int, PartRecord] | dict[int, RunRecord] = {}
    if is_begun(storage, parent):
        behind = {part: record for part, record in records.items() if part >= known}
        if two_stages:
            runs = read_run_records(storage)
            begun = without_lost_files(storage, runs, files.sizes, published=False)
        else:
            begun = without_lost_files(storage, behind, files.sizes, published=False)
        require_same_sources(storage, begun, parts, manifest.spec.read_options, instead=_INSTEAD)
    todo = tuple(part.number for part in parts[known:] if part.number not in begun)
    plan = RunPlan(
        config=config,
        spec=manifest.spec,
        parts=parts,
        todo=todo,
        published=not added and _is_whole(files, manifest),
        scratch=scratch,
        earlier=tuple(PartCounts.of(record) for record in (*own.values(), *begun.values())),
        stage=_stage(two_stages=two_stages, is_added=bool(added)),
        first_part=known,
        first_sources=first_sources(parts, known, len(known_sources))
        if manifest.shuffled is not None
        else (),
        gathering=Gathering() if two_stages and not added else None,
        parent=parent,
    )
    return plan, tokenizer


def _stage(*, two_stages: bool, is_added: bool) -> StageName:
    if not two_stages:
        return "shard"
    return "scatter" if is_added else "gather"  # of which publishing alone is left


def _of_the_dataset(
    storage: Storage, manifest: Manifest, records: dict[int, PartRecord], files: DatasetFiles
) -> dict[int, PartRecord]:
    """The records of the parts that are published.

    Raises:
        ConfigMismatchError: one is gone, or another than the manifest lists.
        CorruptDatasetError: a file of a part is gone.
    """
    own = {part: record for part, record in records.items() if part < len(manifest.parts)}
    for number, summary in enumerate(manifest.parts):
        if number not in own or own[number].summary().record != summary.record:
            raise ConfigMismatchError(
                f"{storage}/{record_path(number)} is not the record that {MANIFEST} lists. "
                f"{command('verify', storage)} tells all that is wrong."
            )
    return without_lost_files(
        storage, own, files.sizes, published=True, extended=bool(manifest.generations)
    )


def _is_whole(files: DatasetFiles, manifest: Manifest) -> bool:
    """Whether nothing is missing beside the parts, and stock readers see the newest generation."""
    if EXTENDING in files.sizes or has_leftovers(files.sizes):
        return False
    if lost_files(files.sizes, beside_parts(manifest)):
        return False
    try:
        for split, summary in manifest.splits.items():
            if index_file(split, summary.index, files.sizes) != summary.index:
                files.read(summary.index, limit=summary.index.size)
    except CorruptDatasetError:
        return False
    return True


def _stand_in(summary: PartSummary) -> Part:
    """A part that is there: of its files the first one."""
    source = SourceFile(
        url=summary.source.url, size=summary.source.size, version=summary.source.version
    )
    return Part(summary.part, (Piece(source, summary.span),))
