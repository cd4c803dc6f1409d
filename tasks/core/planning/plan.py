"""What a run has to do: its sources, its tokenizer, and which parts the output holds already."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.layout import (
    DOCUMENTS_FOLDER,
    PARTS_FOLDER,
    SPLITS,
    part_folder,
)
from streaming_ext.dataset.manifest import NodeShare
from streaming_ext.dataset.record import PartRecord
from streaming_ext.dataset.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.errors import (
    ConfigMismatchError,
    ScratchError,
)
from streaming_ext.storage.local_paths import local_path
from streaming_ext.text.fetch import local_name
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.prepared import save_tokenizer
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tasks.core.config import ShardConfig
from tasks.core.extending.begun import begin, remove_unrecorded
from tasks.core.extending.config import ExtendRunConfig
from tasks.core.extending.plan import plan_extension
from tasks.core.outputs.taken_over import without_damaged
from tasks.core.outputs.whole import beside_parts, files_of_part, lost_files
from tasks.core.planning.node_shares import own_share, require_same_share
from tasks.core.planning.parts import parts_of
from tasks.core.planning.published import (
    gathering_of,
    has_leftovers,
    require_can_be_made_again,
    to_grow,
)
from tasks.core.planning.run_plan import RunPlan
from tasks.core.planning.same_sources import require_same_sources
from tasks.core.planning.shuffled import plan_first_stage, remove_unrecorded_runs
from tasks.core.planning.surroundings import require_outside
from tasks.core.planning.there import manifest_there, require_ours, to_mend, without_lost_files
from tasks.core.reading.records import read_records
from tasks.core.reporting.report import PartCounts
from tasks.core.storage import Storage
from tasks.core.storage.scratch import drop_scratch, take_scratch, user_scratch

_log = logging.getLogger(__name__)


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


def make_plan(config: ShardConfig, storage: Storage, sources: tuple[SourceFile, ...]) -> RunPlan:
    """Compare what is asked for with what the output holds, and prepare the scratch folder.

    The caller holds the output (`Storage.exclusive`).

    Raises:
        ConfigMismatchError: the output was made with another configuration or from other sources.
        UsageError: the output is a folder of something else.
        ScratchError: it is not writable.
        TokenizerError: the tokenizer cannot be had.
    """
    plan, tokenizer = compare_with_output(config, storage, sources)
    return plan if plan.published else prepare(plan, storage, tokenizer)


def compare_with_output(
    config: ShardConfig, storage: Storage, sources: tuple[SourceFile, ...]
) -> tuple[RunPlan, Tokenizer]:
    """What a run has to do, and its tokenizer; nothing is written.

    Raises:
        ConfigMismatchError: the output was made with another configuration or from other sources.
        UsageError: the output is a folder of something else, or lies inside a dataset.
        TokenizerError: the tokenizer cannot be had.
    """
    require_outside(storage)
    scratch = scratch_folder(config, storage)
    if isinstance(config, ExtendRunConfig):
        return plan_extension(config, storage, sources, scratch)
    tokenizer = load_tokenizer(config.tokenizer, eot_token=config.eot_token, pattern=config.pattern)
    spec = config.spec(TokenizerIdentity.model_validate(tokenizer.description()))
    parts, share = own_share(parts_of(sources, config), nodes=config.nodes, rank=config.node_rank)
    if spec.two_stages:
        empty = RunPlan(
            config=config,
            spec=spec,
            parts=parts,
            todo=(),
            published=False,
            scratch=scratch,
            share=share,
        )
        if spec.shuffle is None and manifest_there(storage) is not None:
            return _published_in_order(empty, storage), tokenizer
        return plan_first_stage(empty, storage), tokenizer
    recorded, published = _compare_with_output(storage, spec, parts, share)
    if recorded:  # the same but for the name that the tokenizer was asked for by
        spec = next(iter(recorded.values())).spec
    todo = tuple(part.number for part in parts if part.number not in recorded)
    plan = RunPlan(
        config=config,
        spec=spec,
        parts=parts,
        todo=todo,
        published=published,
        scratch=scratch,
        earlier=tuple(PartCounts.of(record) for record in recorded.values()),
        share=share,
        stage="shard" if spec.imported is None else "import",
    )
    return plan, tokenizer


def prepare(
    plan: RunPlan,
    storage: Storage,
    tokenizer: Tokenizer,
    tell: Callable[[str], None] = lambda words: None,
) -> RunPlan:
    """Remove what killed runs left, and put the tokenizer where all workers load it from.

    Returns the plan, with the parts to be made again that were damaged since they were finished.
    """
    storage.remove_incoming()
    plan = without_damaged(plan, storage, tell)
    recorded = set(range(len(plan.parts))) - set(plan.todo)
    if plan.parent is not None:
        begin(storage, plan.parent)
        if plan.is_one_stage:
            remove_unrecorded(storage, plan.parent, recorded)
    elif plan.is_one_stage:
        _remove_unrecorded(storage, recorded)
    if plan.stage == "scatter":
        remove_unrecorded_runs(storage, recorded)
    try:
        _empty_scratch(plan)
        save_tokenizer(tokenizer, plan.tokenizer_folder, engine=plan.config.engine)
    except OSError as error:
        raise ScratchError(f"Cannot write to scratch {plan.scratch}: {error.strerror}.") from error
    return plan


def _empty_scratch(plan: RunPlan) -> None:
    """Remove what a killed run left, but for the source files that this one needs too."""
    wanted = {
        local_name(piece.source).partition(".")[0]
        for part in plan.todo
        for piece in plan.parts[part].pieces
        if piece.source.remote
    }
    take_scratch(plan.scratch, keep=[plan.downloads])
    for file in plan.downloads.glob("*"):
        if file.name.partition(".")[0].partition("-")[0] not in wanted:
            file.unlink()


def _compare_with_output(
    storage: Storage, spec: DatasetSpec, parts: tuple[Part, ...], share: NodeShare | None
) -> tuple[dict[int, PartRecord], bool]:
    """The records of the parts that are done, and whether the dataset is published and whole.

    Where it lost an index or a file of its tokenizer it is not: publishing makes these again.
    """
    records = read_records(storage)
    manifest = manifest_there(storage)
    if manifest is None and not records:
        require_ours(storage, spec)
        return {}, False
    for made in [manifest, *records.values()]:
        if made is not None:
            made.spec.require_same(spec, where=str(storage))
    if manifest is not None:  # what lies behind its parts is of an extension under way
        records = {part: made for part, made in records.items() if part < len(manifest.parts)}
    sizes = storage.list()
    extended = manifest is not None and bool(manifest.generations)
    records = without_lost_files(
        storage, records, sizes, published=manifest is not None, extended=extended
    )
    if manifest is not None:
        require_same_share(manifest.share, share, where=str(storage))
        if lost := [part.part for part in manifest.parts if part.part not in records]:
            raise ConfigMismatchError(
                f"{storage} is published, but the records of parts {lost[:5]} are gone; "
                f"{to_mend(extended=extended)}."
            )
        if len(parts) != len(manifest.parts):
            kind = "parts" if manifest.format != 1 or _has_pieces(parts) else "source files"
            instead = "" if spec.imported else f" {to_grow(storage)}"
            raise ConfigMismatchError(
                f"{storage} is a whole dataset of {len(manifest.parts)} {kind}, this run "
                f"asks for {len(parts)}. Use another --output.{instead}"
            )
    require_same_sources(storage, records, parts, spec.read_options)
    if manifest is None:
        return records, False
    if lost_beside := lost_files(sizes, beside_parts(manifest)):
        require_can_be_made_again(storage, manifest, lost_beside)
        _log.warning("%s lost %s; it is published again.", storage, ", ".join(lost_beside))
    return records, not lost_beside


def _published_in_order(plan: RunPlan, storage: Storage) -> RunPlan:
    """The plan where there is a manifest of a dataset of two stages in the order of its sources."""
    recorded, published = _compare_with_output(storage, plan.spec, plan.parts, plan.share)
    plan = replace(plan, spec=next((record.spec for record in recorded.values()), plan.spec))
    manifest = manifest_there(storage)
    if published and not has_leftovers(storage.list()):
        return replace(plan, published=True)
    return replace(plan, stage="gather", gathering=gathering_of(manifest))


def _has_pieces(parts: Iterable[Part]) -> bool:
    return any(len(part.pieces) > 1 or part.pieces[0].span is not None for part in parts)


def _remove_unrecorded(storage: Storage, recorded: Iterable[int]) -> None:
    """Remove what killed runs wrote of parts that were never recorded."""
    folders = {part_folder(split, part) for part in recorded for split in SPLITS}
    files = {path for part in recorded for path in files_of_part(part)}
    for top in (*SPLITS, DOCUMENTS_FOLDER, PARTS_FOLDER):
        for path in storage.list(top):
            if path not in files and path.rsplit("/", 1)[0] not in folders:
                storage.remove(path)


def remove_scratch(plan: RunPlan) -> None:
    """Remove the folder for work in progress."""
    drop_scratch(plan.scratch)
