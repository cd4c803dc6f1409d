"""What an extension has to do: its parts, numbered behind those that the dataset has."""

from dataclasses import replace
from pathlib import Path

from streaming_ext.base.errors import ConfigMismatchError, CorruptDatasetError, command
from streaming_ext.format.layout import BUILD, MANIFEST, SHUFFLE_FOLDER, record_path
from streaming_ext.format.manifest import Manifest, index_file
from streaming_ext.format.reading import manifest_of
from streaming_ext.format.record import PartRecord, PartSummary
from streaming_ext.format.schema import FileRecord
from streaming_ext.format.spec import TokenizerIdentity
from streaming_ext.store import Storage
from streaming_ext.text.parts.part import Part, SourceSpan
from streaming_ext.text.sources import SourceFile
from tasks.core.build.engine import lost_files, with_files
from tasks.core.config import ShardConfig
from tasks.core.reading.dataset_files import DatasetFiles, read_records
from tasks.core.reporting.report import PartCounts
from tasks.core.shard.extend_config import ExtendRunConfig, require_extendable
from tasks.core.shard.extension_leftovers import is_begun
from tasks.core.shard.older_sources import all_spans, new_sources, older_sources, spans_of
from tasks.core.shard.own_tokenizer import own_tokenizer
from tasks.core.shard.publish import beside_parts, digests_of, tables_of
from tasks.core.shard.run_plan import Parent, PhaseName
from tasks.core.shard.same_sources import require_same_sources
from tasks.core.shard.shard_build import ShardBuild
from tasks.core.shard.sources import parts_of
from tasks.core.shuffle.records import MergeInput, SpillRecord, first_sources, read_spill_records

_INSTEAD = (
    "the sources of the extension that was begun, or remove runs/.build.json to have it begun anew"
)


def plan_extension(
    config: ShardConfig, storage: Storage, sources: tuple[SourceFile, ...], scratch: Path
) -> ShardBuild:
    """What an extension has to do; nothing is written.

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
    made_of = spans_of(known_sources) if known_sources else all_spans(own)
    added = new_sources(storage, made_of, sources, manifest.spec.read_options)
    parts = tuple(_stand_in(summary) for summary in manifest.parts) + tuple(
        replace(part, number=known + part.number)
        for part in (parts_of(added, config) if added else ())
    )
    two_phases = manifest.spec.two_phases
    begun: dict[int, PartRecord] | dict[int, SpillRecord] = {}
    if is_begun(storage, parent):
        behind = {part: record for part, record in records.items() if part >= known}
        if two_phases:
            runs = read_spill_records(storage)
            begun = with_files(runs, files.sizes)
        else:
            begun = with_files(behind, files.sizes)
        require_same_sources(storage, begun, parts, manifest.spec.read_options, instead=_INSTEAD)
    todo = tuple(part.number for part in parts[known:] if part.number not in begun)
    return ShardBuild(
        config=config,
        spec=manifest.spec,
        tokenizer=tokenizer,
        parts=parts,
        todo=todo,
        published=not added and _is_whole(files, manifest),
        scratch=scratch,
        earlier=tuple(PartCounts.of(record) for record in (*own.values(), *begun.values())),
        phase=_phase(two_phases=two_phases, is_added=bool(added)),
        first_part=known,
        first_sources=first_sources(parts, known, len(known_sources))
        if manifest.shuffled is not None
        else (),
        merge_input=MergeInput() if two_phases and not added else None,
        parent=parent,
    )


def _phase(*, two_phases: bool, is_added: bool) -> PhaseName:
    if not two_phases:
        return "shard"
    return "sort" if is_added else "merge"  # of which publishing alone is left


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
    if lost := sorted(own.keys() - with_files(own, files.sizes).keys()):
        raise CorruptDatasetError(
            f"{storage} is published, but part {lost[0]:05} lost a file. "
            f"{command('verify', storage)} names all that is wrong; put it back from a copy, or "
            f"run `shardmill shard` again if the dataset was never extended."
        )
    return own


def _is_whole(files: DatasetFiles, manifest: Manifest) -> bool:
    """Whether nothing is missing beside the parts, and stock readers see the newest generation."""
    if BUILD in files.sizes or any(path.startswith(f"{SHUFFLE_FOLDER}/") for path in files.sizes):
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
    return Part(summary.part, (SourceSpan(source, summary.span),))
