"""Between the two phases of a run: from all spills to the plan of the parts to merge."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from streaming_ext.base.errors import DatasetError
from streaming_ext.format.filters import FilterName
from streaming_ext.format.manifest import ShuffleSummary
from streaming_ext.format.record import (
    MOST_BAD_LISTED,
    NOT_CHECKED,
    BadDocument,
    PartRecord,
    SourceIdentity,
)
from streaming_ext.format.schema import FileRecord, content_hash
from streaming_ext.format.shuffled import (
    SOURCES_PATH,
    Source,
    grown_sources_path,
    num_parts,
    table_bytes,
)
from streaming_ext.store import Storage
from streaming_ext.text.identity import identify
from streaming_ext.text.parts.part import Part, SourceSpan
from streaming_ext.text.sources import SourceFile, is_remote
from tasks.core.build.build import Recorded, Stretch
from tasks.core.build.engine import damaged_parts, lost_files
from tasks.core.reading.dataset_files import read_records
from tasks.core.shard.dataset_layout import remove_unrecorded, tables_of
from tasks.core.shard.run_plan import RunPlan
from tasks.core.shuffle.copies import OlderTexts, put_comparison
from tasks.core.shuffle.records import (
    MergeIndex,
    MergeInput,
    SpillRecord,
    read_spill_records,
    source_numbers,
    spill_record_path,
)
from tasks.core.shuffle.spills import Spill, SpillIndex


def arrange(plan: RunPlan, storage: Storage) -> RunPlan:
    """The plan of phase two: its parts, the finished ones, and the index of all spills.

    Put on the output are the index of spills, copies and the hashes of what stays; with a shuffle,
    the table of sources.

    Raises:
        DatasetError: a part has no spills.
        StorageError: the output cannot be read or written.
    """
    found = read_spill_records(storage)
    own = plan.parts[plan.first_part :]  # before these are the parts of what is extended
    if missing := [part.number for part in own if part.number not in found]:
        raise DatasetError(
            f"{storage}: the spills of parts {missing[:5]} are gone; something removed them during "
            "the run. Run the same command again."
        )
    records = [found[part.number] for part in own]
    for record in records:  # another run may have written meanwhile
        record.spec.require_same(plan.spec, where=f"{storage}/{spill_record_path(record.part)}")
    laid_out = _lay_out(own, records)
    shuffled = plan.spec.shuffle is not None
    merge_input, documents, copies = MergeInput(), SpillIndex.of([]), SpillIndex.of([])
    if shuffled:
        own, merge_input = _shuffled(plan, storage, records, laid_out)
        documents = _index(laid_out, [record.spills for record in records])
    if plan.spec.deduplicate is not None:
        digests = [record.digests for record in records]
        older = None
        if plan.base is not None:
            older = OlderTexts(storage, plan.base.manifest.digests, shuffled)
        copies, kept = put_comparison(
            storage,
            _index(laid_out, digests) if shuffled else SpillIndex.of([*chain(*digests)]),
            len(own),
            first_part=plan.first_part,
            older=older,
            shuffled=shuffled,
        )
        merge_input = replace(merge_input, digests=kept)
    merge_input = replace(merge_input, index=MergeIndex(documents, copies).put(storage))
    parts = plan.parts[: plan.first_part] + own
    done = _recorded(storage, plan, merge_input, parts, found)
    stay = {file.path for file in (merge_input.digests.files if merge_input.digests else ())}
    if merge_input.summary is not None:
        stay.add(merge_input.summary.sources.path)
    if plan.base is not None:
        stay |= {file.path for file in tables_of(plan.base.manifest)}
    remove_unrecorded(storage, done, first_part=plan.first_part, kept=stay)
    return replace(
        plan,
        phase="merge",
        parts=parts,
        todo=tuple(part.number for part in own if part.number not in done),
        merge_input=merge_input,
    )


def _index(laid_out: "_LaidOut", spills: Sequence[Sequence[Spill]]) -> SpillIndex:
    """The index of spills of each part, which count rows from the beginning of their sources."""
    before = [rows for rows, own in zip(laid_out.before, spills, strict=True) for _ in own]
    return SpillIndex.of([*chain(*spills)], before)


def _shuffled(
    plan: RunPlan, storage: Storage, records: Sequence[SpillRecord], laid_out: "_LaidOut"
) -> tuple[tuple[Part, ...], MergeInput]:
    """The parts of phase two of a shuffle, and what they are merged from.

    The table of sources is put. Sources of an extension are numbered behind the existing
    ones, and so have keys of their own.
    """
    known = plan.base.sources if plan.base is not None else ()
    table = table_bytes([*known, *laid_out.sources])
    path = grown_sources_path(content_hash(table)) if known else SOURCES_PATH
    storage.put(path, table)  # no generation overwrites another's
    summary = ShuffleSummary(
        sources=FileRecord.of(path, table),
        files=len(laid_out.sources),
        files_not_checked=sum(source.identity.content is not None for source in laid_out.sources),
        rows=sum(record.rows for record in records),
        null_documents=sum(record.null_documents for record in records),
        empty_documents=sum(record.empty_documents for record in records),
        bad_documents=sum(record.bad_documents for record in records),
        dropped_documents=_dropped(plan.spec.filters.given(), records),
        bad_listed=laid_out.bad_listed,
    )
    tokens = sum(split.tokens for record in records for split in record.splits.values())
    id_bytes = tokens * np.dtype(plan.spec.dtype).itemsize
    parts = stand_ins(
        num_parts(id_bytes, plan.spec.shard_size), id_bytes, path, first=plan.first_part
    )
    if plan.base is not None:
        summary = plan.base.added_to(summary)
    return parts, MergeInput(summary=summary)


def stand_ins(count: int, size: int, table: str, *, first: int = 0) -> tuple[Part, ...]:
    """The parts of phase two, each with what stands for its spans.

    Args:
        count: how many there are.
        size: of all of them, in bytes of ids.
        table: where that of the sources lies.
        first: number of the first of them.
    """
    source = SourceFile(url=table, size=size // count)
    return tuple(Part(number, (SourceSpan(source),)) for number in range(first, first + count))


@dataclass(frozen=True, slots=True)
class _LaidOut:
    """All spans of all parts, in the order of the sources.

    Attributes:
        sources: by number.
        before: rows of its source that stand before each part.
        bad_listed: the first bad documents, with their rows in the sources.
    """

    sources: list[Source]
    before: list[int]
    bad_listed: tuple[BadDocument, ...]


def _lay_out(parts: Sequence[Part], records: Sequence[SpillRecord]) -> _LaidOut:
    sources: list[Source] = []
    before: list[int] = []
    bad: list[BadDocument] = []
    for record, numbers in zip(records, source_numbers(parts), strict=True):
        rows_before: dict[str, int] = {}
        for source_span, documents, number in zip(
            record.made_of, record.documents, numbers, strict=True
        ):
            span = source_span.span or (0, source_span.source.size)
            if number == len(sources):
                version = record.whole_version or _whole_version(
                    source_span.source, source_span.span
                )
                sources.append(
                    Source(
                        identity=source_span.source.model_copy(update={"version": version}),
                        span=span,
                        rows=0,
                        documents=0,
                    )
                )
            source = sources[number]
            rows_before[source_span.source.url] = source.rows
            unchecked = (
                NOT_CHECKED
                if NOT_CHECKED in {source.identity.content, source_span.source.content}
                else None
            )
            sources[number] = Source(
                identity=source.identity.model_copy(update={"content": unchecked}),
                span=((source.span or span)[0], span[1]),
                rows=source.rows + source_span.rows,
                documents=source.documents + documents,
            )
        before.append(max(rows_before.values()))  # only a part of one span begins inside a file
        for one in record.bad_listed[: MOST_BAD_LISTED - len(bad)]:
            row = one.row + rows_before[one.file]
            bad.append(one.model_copy(update={"row": row, "location": f"row {row}"}))
    whole = [
        replace(source, span=None if source.span == (0, source.identity.size) else source.span)
        for source in sources
    ]
    return _LaidOut(whole, before, tuple(bad))


def _whole_version(identity: SourceIdentity, span: tuple[int, int] | None) -> str:
    """What pins a complete file, if no part begins at its start."""
    if span is None or is_remote(identity.url):
        return identity.version
    return identify(SourceFile(url=identity.url, size=identity.size), Path(identity.url)).version


def _dropped(names: Iterable[FilterName], records: Sequence[SpillRecord]) -> dict[FilterName, int]:
    return {
        name: sum(record.dropped_documents.get(name, 0) for record in records) for name in names
    }


def _recorded(
    storage: Storage,
    plan: RunPlan,
    merge_input: MergeInput,
    parts: Sequence[Part],
    spills: Mapping[int, SpillRecord],
) -> dict[int, PartRecord]:
    """The parts that an earlier run merged from the same spills."""
    sizes = storage.list()

    def is_of_these(record: PartRecord) -> bool:
        if merge_input.source is not None:
            return record.source == merge_input.source
        return record.made_of == spills[record.part].made_of

    done = {
        part: record
        for part, record in read_records(storage).items()
        if plan.first_part <= part < len(parts)
        and is_of_these(record)
        and not record.spec.differences(plan.spec)
        and not lost_files(sizes, record.files())
    }
    bytes_of = {part: [*map(Stretch.of, record.files())] for part, record in done.items()}
    damaged = damaged_parts(Recorded(storage, bytes_of))
    return {part: record for part, record in done.items() if part not in damaged}
