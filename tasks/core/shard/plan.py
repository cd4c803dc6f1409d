"""What a run has to do: its sources, its tokenizer, and which parts the output holds already."""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from streaming_ext.base.errors import ConfigMismatchError, command
from streaming_ext.format.schema import content_hash
from streaming_ext.format.spec import TokenizerIdentity
from streaming_ext.store import Storage
from streaming_ext.store.locations import local_path
from streaming_ext.store.scratch import user_scratch
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.load import load_tokenizer
from tasks.core.build.build import Tell
from tasks.core.build.engine import begin, compare
from tasks.core.config import ShardConfig
from tasks.core.shard.extend_config import ExtendRunConfig
from tasks.core.shard.extension import plan_extension
from tasks.core.shard.run_plan import manifest_there
from tasks.core.shard.shard_build import ShardBuild
from tasks.core.shard.shuffled import compare_two_phases
from tasks.core.shard.sources import check_sources, own_share, parts_of


class _HasScratch(Protocol):
    @property
    def scratch(self) -> str | None: ...


def scratch_folder(config: _HasScratch, storage: Storage) -> Path:
    """Where work in progress goes: as configured, else where the storage says."""
    if config.scratch is None:
        return storage.scratch_parent / f".{storage.name}.scratch"
    return scratch_base(config, storage)


def scratch_base(config: _HasScratch, storage: Storage) -> Path:
    """The folder on this host for work on this output: as configured, else a temporary one."""
    # Two outputs of one name may share the folder: what stands below it names the whole path.
    name = f"{storage.name}-{content_hash(str(storage).encode())[:8]}"
    if config.scratch is None:
        return user_scratch() / name
    return local_path(config.scratch).absolute() / name


def plan_shard(config: ShardConfig, output: Storage, tell: Tell = lambda words: None) -> ShardBuild:
    """What a run has to do; nothing is written.

    Raises:
        ShardmillError: as `compare_with_output` and `check_sources`.
    """
    tell("looking at the sources")
    sources = check_sources(config)
    tell("preparing the tokenizer")
    return compare_with_output(config, output, sources)


def make_plan(config: ShardConfig, storage: Storage, sources: tuple[SourceFile, ...]) -> ShardBuild:
    """Compare what is asked for with what the output holds, and begin.

    The caller holds the output (`Storage.exclusive`).

    Raises:
        ShardmillError: as `compare_with_output`.
        ScratchError: scratch is not writable.
    """
    build = compare_with_output(config, storage, sources)
    return build if build.published else begin(build, storage, lambda words: None)


def compare_with_output(
    config: ShardConfig, storage: Storage, sources: tuple[SourceFile, ...]
) -> ShardBuild:
    """What a run has to do; nothing is written.

    Raises:
        ConfigMismatchError: the output was made with another configuration or from other sources.
        UsageError: the output is a folder of something else, or lies inside a dataset.
        TokenizerError: the tokenizer cannot be had.
    """
    scratch = scratch_folder(config, storage)
    if isinstance(config, ExtendRunConfig):
        return plan_extension(config, storage, sources, scratch)
    tokenizer = load_tokenizer(config.tokenizer, eot_token=config.eot_token, pattern=config.pattern)
    spec = config.spec(TokenizerIdentity.model_validate(tokenizer.description()))
    parts, share = own_share(parts_of(sources, config), nodes=config.nodes, rank=config.node_rank)
    build = ShardBuild(
        config=config,
        phase="shard" if spec.imported is None else "import",
        spec=spec,
        tokenizer=tokenizer,
        parts=parts,
        scratch=scratch,
        share=share,
    )
    if spec.two_phases:
        build = compare_two_phases(replace(build, phase="sort"), storage)
    else:
        build = compare(build, storage)
    _require_not_extended(build, storage)
    return build


def _require_not_extended(build: ShardBuild, storage: Storage) -> None:
    """Refuse to publish a dataset again that would lose its older generations.

    Raises:
        ConfigMismatchError: it was extended, and lost files.
    """
    manifest = None if build.published else manifest_there(storage)
    if manifest is not None and manifest.generations:
        raise ConfigMismatchError(
            f"{storage} was extended, and lost files: {command('verify', storage)} names them. "
            "This run would publish it without its older generations. "
            f"{command('extend', storage, 'SOURCE...')} with the same sources makes indexes and "
            "the tokenizer again; the files of a part come back from a copy only."
        )
