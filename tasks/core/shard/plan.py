"""Planning of a run: its sources, its tokenizer, and the parts that the output already holds."""

from dataclasses import replace

from streaming_ext.base.errors import ConfigMismatchError, command
from streaming_ext.format.layout import MANIFEST
from streaming_ext.format.reading import read_manifest
from streaming_ext.format.record import PartSummary
from streaming_ext.format.shuffled import sources_of
from streaming_ext.format.spec import DatasetSpec, IdOptions, TokenizerIdentity
from streaming_ext.store import Storage
from streaming_ext.text.look import look_into
from streaming_ext.text.parts import Part, SourceSpan
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.datasets import require_apart
from streaming_ext.text.text_hashes import UNICODE
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.config import ExtendConfig, ImportConfig, ShardConfig
from tasks.core.engine.build import OnStatus
from tasks.core.engine.lifecycle import compare
from tasks.core.engine.output_files import lost_files, scratch_folder
from tasks.core.reading.dataset_files import (
    digests_of,
    existing_manifest,
    read_recorded,
    read_records,
    recorded_sizes,
)
from tasks.core.shard.arrange import stand_ins
from tasks.core.shard.run_plan import BaseDataset, to_grow
from tasks.core.shard.shard_build import ShardBuild
from tasks.core.shard.sources import (
    find_sources,
    list_token_files,
    new_sources,
    own_partition,
    parts_of,
    require_same_parts,
    require_same_table,
    warn_of_doubtful,
)
from tasks.core.shuffle.spills import MergeInput


def _silent(words: str) -> None:
    """Ignore the status."""


def plan_shard(config: ShardConfig, output: Storage, on_status: OnStatus = _silent) -> ShardBuild:
    """Plan a run of `shard`; nothing is written.

    Raises:
        UsageError: no source can be used, or the output holds other files, or lies inside a
            dataset or inside the sources.
        ConfigMismatchError: the output was made with another configuration or from other sources.
        TokenizerError: the tokenizer cannot be loaded.
        StorageError: a server refuses or does not answer, or the output has no room.
    """
    on_status("looking at the sources")
    require_apart(config.output, config.sources)
    sources = find_sources(config, config.read_options)
    on_status("preparing the tokenizer")
    tokenizer = config.load_tokenizer()
    spec = config.spec(_identity(tokenizer))
    parts, node_partition = own_partition(
        parts_of(sources, config, spec.read_options), nodes=config.nodes, rank=config.node_rank
    )
    build = ShardBuild(
        config=config,
        kind="shard",
        phase="sort" if spec.two_phases else "shard",
        engine=config.engine,
        check_sources=config.check_sources,
        sources=config.sources,
        spec=spec,
        tokenizer=tokenizer,
        parts=parts,
        scratch=scratch_folder(config, output),
        node_partition=node_partition,
    )
    if spec.two_phases and build.is_published(output):
        build = _second_phase(build, output)
    return _compared(build, output)


def plan_import(config: ImportConfig, output: Storage, on_status: OnStatus = _silent) -> ShardBuild:
    """Plan a run of `import`; nothing is written.

    Raises:
        UsageError, ConfigMismatchError, TokenizerError, StorageError: see `plan_shard`.
    """
    on_status("preparing the tokenizer")
    require_apart(config.output, config.sources)
    tokenizer = config.load_tokenizer()
    spec = config.spec(_identity(tokenizer))
    on_status("looking at the sources")
    sources = list_token_files(config.sources, IdOptions.of(spec.tokenizer, config.imported))
    warn_of_doubtful(look_into(sources, spec.read_options))
    build = ShardBuild(
        config=config,
        kind="import",
        phase="import",
        engine=None,
        check_sources=config.check_sources,
        sources=config.sources,
        spec=spec,
        tokenizer=tokenizer,
        parts=parts_of(sources, config, spec.read_options),
        scratch=scratch_folder(config, output),
    )
    return _compared(build, output)


def plan_extend(config: ExtendConfig, output: Storage, on_status: OnStatus = _silent) -> ShardBuild:
    """Plan a run of `extend`; nothing is written. Sources that the dataset holds are left out.

    Raises:
        NotADatasetError: the dataset is not published.
        CorruptDatasetError: it lost a file.
        UsageError, ConfigMismatchError, TokenizerError, StorageError: see `plan_shard`.
    """
    base = BaseDataset.open(output)
    spec, known = base.manifest.spec, len(base.manifest.parts)
    on_status("looking at the sources")
    require_apart(config.output, config.sources)
    # Columns may be missing: the files of the dataset had them.
    sources = find_sources(config, spec.read_options, may_lack=True)
    on_status("preparing the tokenizer")
    tokenizer = base.open_tokenizer(config.tokenizer)
    _require_same_environment(spec, tokenizer, output)
    added = new_sources(output, base.made_of, sources, spec.read_options)
    parts = tuple(_stand_in(summary) for summary in base.manifest.parts) + tuple(
        replace(part, number=known + part.number)
        for part in (parts_of(added, config, spec.read_options) if added else ())
    )
    only_publish = spec.two_phases and not added
    build = ShardBuild(
        config=config,
        kind="extend",
        phase="merge" if only_publish else "sort" if spec.two_phases else "shard",
        engine=config.engine,
        check_sources=config.check_sources,
        sources=config.sources,
        spec=spec,
        tokenizer=tokenizer,
        parts=parts,
        scratch=scratch_folder(config, output),
        first_part=known,
        first_source=len(base.sources),
        merge_input=MergeInput() if only_publish else None,
        base=base,
    )
    build = _compared(build, output)
    return replace(build, published=build.published and base.is_complete())


def _identity(tokenizer: Tokenizer) -> TokenizerIdentity:
    return TokenizerIdentity.model_validate(tokenizer.description())


def _require_same_environment(spec: DatasetSpec, tokenizer: Tokenizer, output: Storage) -> None:
    """Refuse to extend a dataset if the same texts would give other bytes now.

    Raises:
        ConfigMismatchError: the tokenizer or Python's Unicode tables differ.
    """
    own = {"tokenizer": _identity(tokenizer), "unicode": spec.unicode and UNICODE}
    spec.require_same(spec.model_copy(update=own), where=str(output))


def _compared(build: ShardBuild, output: Storage) -> ShardBuild:
    """Compare a build with its output; return it with what is left to do.

    Raises:
        ConfigMismatchError: see `compare`; or the output was extended since, and lost files.
        StorageError: the output has no room for the parts that are left.
    """
    build = compare(build, output).with_earlier()
    if build.published:
        return build
    build.require_room(output)
    manifest = None if build.kind == "extend" else existing_manifest(output)
    if manifest is not None and manifest.generations:
        raise ConfigMismatchError(
            f"{output} was extended, and lost files: {command('verify', output)} names them. "
            "This run would publish it without its older generations. "
            f"{command('extend', output, 'SOURCE...')} with the same sources makes indexes and "
            "the tokenizer again; the files of a part come back from a copy only."
        )
    return build


def _second_phase(build: ShardBuild, storage: Storage) -> ShardBuild:
    """Return phase two if the published dataset has all files of its parts, else phase one."""
    manifest = read_manifest(storage)
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


def _stand_in(summary: PartSummary) -> Part:
    """Return a stand-in for a part of the extended dataset, with its first file only."""
    source = SourceFile(
        url=summary.source.url, size=summary.source.size, version=summary.source.version
    )
    return Part(summary.part, (SourceSpan(source, summary.span),))
