"""What is left to do of a dataset that is made in two phases."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from streaming_ext.base.errors import ConfigMismatchError, CorruptDatasetError
from streaming_ext.format.layout import MANIFEST
from streaming_ext.format.manifest import Manifest, ShuffleSummary
from streaming_ext.format.shuffled import Source, sources_of
from streaming_ext.store import Storage
from streaming_ext.text.identity import identify
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.build.engine import lost_files, require_ours, with_files
from tasks.core.build.outside import require_outside
from tasks.core.reading.dataset_files import read_records
from tasks.core.shard.arrange import stand_ins
from tasks.core.shard.publish import beside_parts, digests_of
from tasks.core.shard.run_plan import manifest_there, to_grow
from tasks.core.shard.same_sources import require_same_sources
from tasks.core.shard.shard_build import ShardBuild
from tasks.core.shard.sources import require_same_share, shortened
from tasks.core.shuffle.records import MergeInput, first_sources, read_spill_records, source_numbers

_log = logging.getLogger(__name__)
_IO_THREADS = 8


def compare_two_phases(build: ShardBuild, storage: Storage) -> ShardBuild:
    """A build of two phases with what is left to do; nothing is written.

    Args:
        build: its first phase.
        storage: the output.

    Raises:
        ConfigMismatchError: the output was made with another configuration or from other sources.
        UsageError: the output is a folder of something else.
    """
    require_outside(storage)
    build = replace(build, first_sources=first_sources(build.parts))
    manifest = manifest_there(storage)
    records, runs = read_records(storage), read_spill_records(storage)
    for made in [manifest, *records.values(), *runs.values()]:
        if made is not None:
            made.spec.require_same(build.spec, where=str(storage))
    sizes = storage.list()
    if manifest is not None:
        require_same_share(manifest.share, build.share, where=str(storage))
        records = {part: made for part, made in records.items() if part < len(manifest.parts)}
        if manifest.shuffled is not None:
            _require_same_sources(storage, _table(storage, manifest.shuffled), build.parts)
        else:
            require_same_sources(storage, records, build.parts, build.spec.read_options)
        whole = with_files(records, sizes)
        lost = lost_files(sizes, beside_parts(manifest))
        if len(whole) == len(manifest.parts) and not {*lost} & {
            file.path for file in digests_of(manifest)
        }:
            if lost:
                _log.warning("%s lost %s; it is published again.", storage, ", ".join(lost))
            return replace(
                build,
                spec=manifest.spec,
                phase="merge",
                parts=stand_ins(len(manifest.parts), 0, MANIFEST),
                merge_input=_merge_input_of(manifest),
                published=not lost,
            )
    else:
        require_ours(build, storage, sizes, is_recorded=bool(records or runs))
    runs = with_files(runs, sizes)
    require_same_sources(storage, runs, build.parts, build.spec.read_options)
    build = replace(
        build.resumed(runs), todo=tuple(n for n in range(len(build.parts)) if n not in runs)
    )
    build.require_room(storage)
    return build


def _table(storage: Storage, summary: ShuffleSummary) -> Sequence[Source]:
    path = summary.sources.path
    try:
        return sources_of(storage.read(path))
    except (FileNotFoundError, CorruptDatasetError) as error:
        raise CorruptDatasetError(
            f"{storage} is published, but {path} is missing or damaged ({error}), so nothing says "
            f"whether these are its sources. Remove {MANIFEST} to have all of it made again."
        ) from error


def _require_same_sources(storage: Storage, made: Sequence[Source], parts: Sequence[Part]) -> None:
    """Refuse a dataset that was made from other sources; local files are read and hashed.

    Raises:
        ConfigMismatchError: naming what differs.
    """
    asked: list[tuple[SourceFile, tuple[int, int]]] = []
    for part, numbers in zip(parts, source_numbers(parts), strict=True):
        for source_span, number in zip(part.spans, numbers, strict=True):
            span = source_span.span or (0, source_span.source.size)
            if number == len(asked):
                asked.append((source_span.source, span))
            asked[number] = (source_span.source, (asked[number][1][0], span[1]))
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


def _merge_input_of(manifest: Manifest) -> MergeInput:
    """What a published dataset was merged from, as far as publishing it again needs that."""
    digests = manifest.digests[-1] if manifest.digests else None
    return MergeInput(summary=manifest.shuffled, digests=digests)
