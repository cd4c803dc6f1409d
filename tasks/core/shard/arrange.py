"""The work between the two phases of a run: it plans the parts that are merged from all spills."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from streaming_ext.format.manifest import ShuffleSummary
from streaming_ext.format.record import (
    MOST_BAD_LISTED,
    BadDocument,
    RowCounts,
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
from streaming_ext.text.fetch import identify
from streaming_ext.text.parts import Part, SourceSpan
from streaming_ext.text.sources import SourceFile, is_remote
from streaming_ext.writing.publish import require_documents
from tasks.core.engine.output_files import all_recorded
from tasks.core.shard.run_plan import RunPlan
from tasks.core.shard.sources import joined_spans
from tasks.core.shuffle.copies import OlderTexts, put_comparison
from tasks.core.shuffle.spills import (
    MergeIndex,
    MergeInput,
    Spill,
    SpillIndex,
    SpillRecord,
    read_spill_records,
    source_numbers,
    spill_record_path,
)


def arrange(plan: RunPlan, storage: Storage) -> RunPlan:
    """Return the plan of phase two: its parts and the index of all spills.

    The index of spills, the spills of copies and the hashes of documents that stay are put on the
    output; with a shuffle, also the table of sources.

    Raises:
        DatasetError: a part has no spills.
        SourceError: a source has no text, or no document is left.
        StorageError: the output cannot be read or written.
    """
    own = plan.parts[plan.first_part :]  # earlier parts are those of the extended dataset
    numbers = range(plan.first_part, len(plan.parts))
    records = all_recorded(read_spill_records(storage), numbers, storage)
    for record in records:  # another run may have written meanwhile
        record.spec.require_same(plan.spec, where=f"{storage}/{spill_record_path(record.part)}")
    require_documents(records, str(storage), all_parts=plan.base is None)
    merge_input, documents, copies = MergeInput(), SpillIndex.of([]), SpillIndex.of([])
    before = [0 for _ in records]
    if shuffled := plan.spec.shuffle is not None:
        own, merge_input, before = _shuffled(plan, storage, own, records)
        documents = _index([record.spills for record in records], before)
    if plan.spec.deduplicate is not None:
        digests = [record.digests for record in records]
        older = None
        if plan.base is not None:
            older = OlderTexts(plan.base.files, plan.base.manifest.digests, shuffled)
        copies, kept = put_comparison(
            storage,
            _index(digests, before),
            len(own),
            first_part=plan.first_part,
            older=older,
            spec=plan.spec,
        )
        merge_input = replace(merge_input, digests=kept)
    merge_input = replace(merge_input, index=MergeIndex(documents, copies).put(storage))
    return replace(
        plan, phase="merge", parts=plan.parts[: plan.first_part] + own, merge_input=merge_input
    )


def _index(spills: Sequence[Sequence[Spill]], before: Sequence[int]) -> SpillIndex:
    """Return the index of the spills of each part, with the rows before it."""
    rows = [rows for rows, own in zip(before, spills, strict=True) for _ in own]
    return SpillIndex.of([*chain(*spills)], rows)


def _shuffled(
    plan: RunPlan, storage: Storage, own: Sequence[Part], records: Sequence[SpillRecord]
) -> tuple[tuple[Part, ...], MergeInput, list[int]]:
    """Put the table of sources of a shuffle, and plan its phase two.

    Sources of an extension are numbered after the existing ones, so their keys differ.

    Returns:
        The parts of phase two; their input; the rows that each part of phase one has before it
        in its source.
    """
    older = plan.base.manifest.shuffled if plan.base is not None else None
    known = plan.base.sources if plan.base is not None else ()
    counted: list[ShuffleSummary | SpillRecord] = [*([older] if older else []), *records]
    found, before, bad = _lay_out(own, records)
    bad_listed = (*(older.bad_listed if older else ()), *bad)
    sources = [*known, *found]
    table = table_bytes(sources)
    path = grown_sources_path(content_hash(table)) if known else SOURCES_PATH
    storage.put(path, table)  # each generation has its own path
    summary = ShuffleSummary(
        sources=FileRecord.of(path, table),
        files=len(sources),
        files_not_checked=sum(source.identity.content is not None for source in sources),
        **dict(RowCounts.total(counted)),
        bad_listed=bad_listed[:MOST_BAD_LISTED],
    )
    tokens = sum(record.tokens_kept for record in records)
    id_bytes = tokens * np.dtype(plan.spec.dtype).itemsize
    parts = stand_ins(
        num_parts(id_bytes, plan.spec.shard_size), id_bytes, path, first=plan.first_part
    )
    return parts, MergeInput(summary=summary), before


def stand_ins(count: int, size: int, table: str, *, first: int = 0) -> tuple[Part, ...]:
    """Return the parts of phase two, which have a stand-in for their spans.

    Args:
        count: the number of parts.
        size: the size of all parts, in bytes of ids.
        table: the path of the table of sources.
        first: the number of the first part.
    """
    source = SourceFile(url=table, size=size // count)
    return tuple(Part(number, (SourceSpan(source),)) for number in range(first, first + count))


def _lay_out(
    parts: Sequence[Part], records: Sequence[SpillRecord]
) -> tuple[list[Source], list[int], list[BadDocument]]:
    """Number the sources of all parts, and count the rows before each part.

    Returns:
        The sources by number; the rows that each part has before it in its source; the first bad
        documents, with their rows in the sources.
    """
    spans = joined_spans(parts)
    sources: list[Source] = []
    before: list[int] = []
    bad: list[BadDocument] = []
    for record, numbers in zip(records, source_numbers(parts), strict=True):
        rows_before: dict[str, int] = {}
        for made, documents, number in zip(record.made_of, record.documents, numbers, strict=True):
            if number == len(sources):
                version = record.whole_version or _whole_version(made.source, made.span)
                identity = made.source.model_copy(update={"version": version})
                span = spans[number].span
                sources.append(Source(identity=identity, span=span, rows=0, documents=0))
            source = sources[number]
            rows_before[made.source.url] = source.rows
            content = source.identity.content or made.source.content
            sources[number] = replace(
                source,
                identity=source.identity.model_copy(update={"content": content}),
                rows=source.rows + made.rows,
                documents=source.documents + documents,
            )
        before.append(max(rows_before.values()))  # only a part with one span begins inside a file
        for one in record.bad_listed[: MOST_BAD_LISTED - len(bad)]:
            row = one.row + rows_before[one.file]
            bad.append(one.model_copy(update={"row": row, "location": f"row {row}"}))
    return sources, before, bad


def _whole_version(identity: SourceIdentity, span: tuple[int, int] | None) -> str:
    """Return the version of a source that no part read from its start."""
    if span is None or is_remote(identity.url):
        return identity.version
    return identify(SourceFile(url=identity.url, size=identity.size), Path(identity.url)).version
