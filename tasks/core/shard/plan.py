"""What a run has to do: its sources, its tokenizer, and which parts the output holds already."""

from dataclasses import replace

from streaming_ext.base.errors import ConfigMismatchError, command
from streaming_ext.format.layout import MANIFEST
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.record import PartSummary
from streaming_ext.format.shuffled import sources_of
from streaming_ext.format.spec import TokenizerIdentity
from streaming_ext.store import Storage
from streaming_ext.text.parts import Part, SourceSpan
from streaming_ext.text.sources import SourceFile
from tasks.core.config import ShardConfig
from tasks.core.engine.build import OnStatus
from tasks.core.engine.engine import compare, lost_files
from tasks.core.engine.outside import scratch_folder
from tasks.core.reading.dataset_files import read_recorded, read_records, recorded_sizes
from tasks.core.reading.dataset_layout import digests_of, existing_manifest
from tasks.core.shard.arrange import stand_ins
from tasks.core.shard.base_dataset import BaseDataset
from tasks.core.shard.extend_config import ExtendRunConfig
from tasks.core.shard.run_plan import to_grow
from tasks.core.shard.same_sources import new_sources, require_same_parts, require_same_table
from tasks.core.shard.shard_build import ShardBuild
from tasks.core.shard.sources import check_sources, own_partition, parts_of
from tasks.core.shuffle.records import MergeInput, first_sources


def plan_shard(
    config: ShardConfig, output: Storage, on_status: OnStatus = lambda words: None
) -> ShardBuild:
    """What a run has to do; nothing is written.

    Raises:
        ShardmillError: as `compare_with_output` and `check_sources`.
    """
    on_status("looking at the sources")
    sources = check_sources(config)
    on_status("preparing the tokenizer")
    return compare_with_output(config, output, sources)


def compare_with_output(
    config: ShardConfig, storage: Storage, sources: tuple[SourceFile, ...]
) -> ShardBuild:
    """What a run has to do; nothing is written.

    Raises:
        ConfigMismatchError: the output was made with another configuration or from other sources.
        UsageError: the output is a folder of something else, or lies inside a dataset.
        NotADatasetError: the dataset to extend is not published.
        CorruptDatasetError: it lost a file.
        TokenizerError: the tokenizer cannot be had.
    """
    if isinstance(config, ExtendRunConfig):
        return _extension(config, storage, sources)
    tokenizer = config.load_tokenizer()
    spec = config.spec(TokenizerIdentity.model_validate(tokenizer.description()))
    parts, node_partition = own_partition(
        parts_of(sources, config), nodes=config.nodes, rank=config.node_rank
    )
    build = ShardBuild(
        config=config,
        phase="sort" if spec.two_phases else "import" if spec.imported else "shard",
        spec=spec,
        tokenizer=tokenizer,
        parts=parts,
        first_sources=first_sources(parts) if spec.two_phases else (),
        scratch=scratch_folder(config, storage),
        node_partition=node_partition,
    )
    manifest = existing_manifest(storage)
    if manifest is not None and spec.two_phases and build.is_published(storage):
        build = _second_phase(build, manifest, storage)
    build = compare(build, storage)
    if manifest is not None and manifest.generations and not build.published:
        raise ConfigMismatchError(
            f"{storage} was extended, and lost files: {command('verify', storage)} names them. "
            "This run would publish it without its older generations. "
            f"{command('extend', storage, 'SOURCE...')} with the same sources makes indexes and "
            "the tokenizer again; the files of a part come back from a copy only."
        )
    return build


def _second_phase(build: ShardBuild, manifest: Manifest, storage: Storage) -> ShardBuild:
    """The second phase of a published dataset that has all parts, else its first phase."""
    records = read_records(storage, range(len(manifest.parts)))
    if manifest.shuffled is None:
        require_same_parts(storage, records, build.parts, build.spec.read_options)
    else:
        file = manifest.shuffled.sources
        table = sources_of(read_recorded(storage, file))
        require_same_table(storage, table, build.parts, advice=to_grow(storage))
    needed = [file for record in records.values() for file in record.files()]
    needed += digests_of(manifest)
    if len(records) < len(manifest.parts) or lost_files(storage.list(), recorded_sizes(needed)):
        return build
    return replace(
        build,
        spec=manifest.spec,
        phase="merge",
        parts=stand_ins(len(manifest.parts), 0, MANIFEST),
        merge_input=MergeInput(
            summary=manifest.shuffled, digests=manifest.digests[-1] if manifest.digests else None
        ),
    )


def _extension(
    config: ExtendRunConfig, storage: Storage, sources: tuple[SourceFile, ...]
) -> ShardBuild:
    """What an extension has to do; sources that the dataset holds are left out."""
    base = BaseDataset.open(storage)
    spec, known = base.manifest.spec, len(base.manifest.parts)
    tokenizer = base.open_tokenizer(config.instead)
    identity = TokenizerIdentity.model_validate(tokenizer.description())
    spec.require_same(config.spec(identity), where=str(storage))
    added = new_sources(storage, base.made_of, sources, spec.read_options)
    parts = tuple(_stand_in(summary) for summary in base.manifest.parts) + tuple(
        replace(part, number=known + part.number)
        for part in (parts_of(added, config) if added else ())
    )
    only_publish = spec.two_phases and not added
    build = ShardBuild(
        config=config,
        phase="merge" if only_publish else "sort" if spec.two_phases else "shard",
        spec=spec,
        tokenizer=tokenizer,
        parts=parts,
        scratch=scratch_folder(config, storage),
        first_part=known,
        first_sources=first_sources(parts, known, len(base.sources)) if spec.shuffle else (),
        merge_input=MergeInput() if only_publish else None,
        base=base,
    )
    build = compare(build, storage)
    return replace(build, published=build.published and base.is_complete())


def _stand_in(summary: PartSummary) -> Part:
    """A part of the dataset that is extended, with its first file."""
    source = SourceFile(
        url=summary.source.url, size=summary.source.size, version=summary.source.version
    )
    return Part(summary.part, (SourceSpan(source, summary.span),))
