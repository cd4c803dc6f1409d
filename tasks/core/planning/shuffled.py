"""The plan of a run of two stages: the first of them, or that nothing is left to do."""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from streaming_ext.dataset.layout import MANIFEST, SHUFFLE_FOLDER
from streaming_ext.dataset.manifest import Manifest, ShuffleSummary
from streaming_ext.dataset.shuffled.source_table import Source, sources_of
from streaming_ext.errors import ConfigMismatchError, CorruptDatasetError
from streaming_ext.text.identity import identify
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.outputs.whole import beside_parts, lost_files
from tasks.core.planning.node_shares import require_same_share
from tasks.core.planning.published import (
    gathering_of,
    has_leftovers,
    require_can_be_made_again,
    to_grow,
)
from tasks.core.planning.run_plan import RunPlan
from tasks.core.planning.same_sources import require_same_sources
from tasks.core.planning.sources import shortened
from tasks.core.planning.there import manifest_there, require_ours, to_mend, without_lost_files
from tasks.core.reading.records import read_records
from tasks.core.reporting.report import PartCounts
from tasks.core.shuffle.arrange import read_run_records, stand_ins
from tasks.core.shuffle.numbering import first_sources, source_numbers
from tasks.core.shuffle.run_record import run_record_path
from tasks.core.storage import Storage

_log = logging.getLogger(__name__)
_IO_THREADS = 8


def plan_first_stage(plan: RunPlan, storage: Storage) -> RunPlan:
    """Compare what is asked for with what the output holds.

    Args:
        plan: of all parts, as if nothing was there.
        storage: the output.

    Raises:
        ConfigMismatchError: the output was made with another configuration or from other sources.
        CorruptDatasetError: a published dataset lost a file.
        UsageError: the output is a folder of something else.
    """
    plan = replace(plan, stage="scatter", first_sources=first_sources(plan.parts))
    manifest = manifest_there(storage)
    records, runs = read_records(storage), read_run_records(storage)
    if manifest is None and not records and not runs:
        require_ours(storage, plan.spec)
    # Without a shuffle no manifest is there: `compare_with_output` asked.
    for made in [manifest, *records.values(), *runs.values()]:
        if made is not None:
            made.spec.require_same(plan.spec, where=str(storage))
    if manifest is not None:
        return _published(plan, storage, manifest)
    runs = without_lost_files(storage, runs, storage.list(), published=False)
    require_same_sources(storage, runs, plan.parts, plan.spec.read_options)
    return replace(
        plan,
        spec=next((record.spec for record in runs.values()), plan.spec),
        todo=tuple(part.number for part in plan.parts if part.number not in runs),
        earlier=tuple(PartCounts.of(record) for record in runs.values()),
    )


def _published(plan: RunPlan, storage: Storage, manifest: Manifest) -> RunPlan:
    """The plan where there is a manifest: nothing to do, or to publish once more."""
    summary = manifest.shuffled
    assert summary is not None  # noqa: S101  (its specification is that of the plan)
    sizes = storage.list()
    records = {
        part: made for part, made in read_records(storage).items() if part < len(manifest.parts)
    }  # what lies behind is of an extension under way
    extended = bool(manifest.generations)
    records = without_lost_files(storage, records, sizes, published=True, extended=extended)
    require_same_share(manifest.share, plan.share, where=str(storage))
    if lost := [part.part for part in manifest.parts if part.part not in records]:
        raise ConfigMismatchError(
            f"{storage} is published, but the records of parts {lost[:5]} are gone; "
            f"{to_mend(extended=extended)}."
        )
    _require_same_sources(storage, _table(storage, summary), plan.parts)
    plan = replace(plan, spec=manifest.spec)
    lost_beside = lost_files(sizes, beside_parts(manifest))
    if not has_leftovers(sizes) and not lost_beside:
        return replace(plan, published=True)
    if lost_beside:
        require_can_be_made_again(storage, manifest, lost_beside)
        _log.warning("%s lost %s; it is published again.", storage, ", ".join(lost_beside))
    return replace(
        plan,
        stage="gather",
        parts=stand_ins(len(manifest.parts), 0, summary.sources.path),
        gathering=gathering_of(manifest),
    )


def _table(storage: Storage, summary: ShuffleSummary) -> Sequence[Source]:
    path = summary.sources.path
    try:
        return sources_of(storage.read(path))
    except (FileNotFoundError, CorruptDatasetError) as error:
        raise CorruptDatasetError(
            f"{storage} is published, but {path} is missing or damaged ({error}). Remove "
            f"{MANIFEST} to have it made again."
        ) from error


def _require_same_sources(storage: Storage, made: Sequence[Source], parts: Sequence[Part]) -> None:
    """Refuse a dataset that was made from other sources; local files are read and hashed.

    Raises:
        ConfigMismatchError: naming what differs.
    """
    asked: list[tuple[SourceFile, tuple[int, int]]] = []
    for part, numbers in zip(parts, source_numbers(parts), strict=True):
        for piece, number in zip(part.pieces, numbers, strict=True):
            span = piece.span or (0, piece.source.size)
            if number == len(asked):
                asked.append((piece.source, span))
            asked[number] = (piece.source, (asked[number][1][0], span[1]))
    differences = []
    if len(asked) != len(made):
        differences.append(f"the output has {len(made)} source files, this run {len(asked)}")
    with ThreadPoolExecutor(_IO_THREADS) as threads:
        found = threads.map(lambda pair: _difference(*pair), zip(made, asked, strict=False))
        differences += [words for words in found if words is not None]
    if differences:
        raise ConfigMismatchError(
            f"{storage} was made from other sources:\n  "
            + "\n  ".join(shortened(differences))
            + f"\nUse the old sources, or another --output. {to_grow(storage)}"
        )


def _difference(made: Source, asked: tuple[SourceFile, tuple[int, int]]) -> str | None:
    (source, span), identity = asked, made.identity
    if source.url != identity.url:
        return f"the output has {identity.url}, this run {source.url}"
    if source.size != identity.size:
        return f"{identity.url}: {identity.size} bytes in the output's table, {source.size} now"
    if span != (made.span or (0, identity.size)):
        return f"{identity.url}: bytes {made.span} in the output's table, {span} now"
    version = source.version or identify(source, Path(source.url)).version
    if version != identity.version:
        return f"{identity.url}: content {identity.version} in the output's table, {version} now"
    return None


def remove_unrecorded_runs(storage: Storage, recorded: Iterable[int]) -> None:
    """Remove the runs that killed runs wrote of parts that were never recorded."""
    parts = set(recorded)
    records = {run_record_path(part) for part in parts}
    for path in storage.list(SHUFFLE_FOLDER):
        name = path.rsplit("/", 1)[-1]
        of_part = name.partition("-")[0]
        if path not in records and not (of_part.isdigit() and int(of_part) in parts):
            storage.remove(path)
