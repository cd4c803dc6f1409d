"""The documents of a sequence, with their source files and rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import UsageError
from streaming_ext.format.provenance import SourceRow
from streaming_ext.order.state import Cursor
from streaming_ext.reading.source import DocumentRanges
from streaming_ext.training.features.documents import split_documents

if TYPE_CHECKING:
    from streaming_ext.training.token_dataset import StreamingTokenDataset


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentSpan(SourceRow):
    """A segment of a document in a sequence, and the source row of the document.

    Attributes:
        first: the number of the segment's first token in the document, from 0.
        tokens: tokens of the segment, including the end-of-text id.
        position: the number of the segment's first token in the sequence, from 0.
    """

    first: int
    tokens: int
    position: int

    @property
    def document(self) -> SourceRow:
        """The source row alone."""
        return SourceRow(self.source, self.row, self.from_byte)


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceTrace:
    """The documents of a sequence; tokens that no span covers are padding.

    Attributes:
        rank: the data-parallel rank that reads the sequence.
        stream: the number of the stream.
        sequence: the number of the sequence in its stream, in the order on disk.
        spans: the documents, in order.
    """

    rank: int
    stream: int
    sequence: int
    spans: tuple[DocumentSpan, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentVisit:
    """A step that holds a document, or a segment of it; see `SequenceTrace` for the fields."""

    step: int
    rank: int
    stream: int
    sequence: int
    span: DocumentSpan


def trace_step(
    dataset: "StreamingTokenDataset", step: int, *, epoch: int = 0, cursor: Cursor | None = None
) -> list[SequenceTrace]:
    """Trace the sequences of one step, rank by rank in the order of their batches.

    Args:
        dataset: the dataset of any rank.
        step: the number of the step, from the start of the epoch.
        epoch: the number of the epoch, for a run that changed no setting before it.
        cursor: a cursor of the epoch, for a run that did.

    Raises:
        UsageError: the epoch has no such step, or the dataset does not know its documents.
        CorruptDatasetError: a record or table of documents is missing or damaged.
    """
    begin = replace(cursor or dataset.plan.start(epoch), position=0)
    steps = dataset.plan.steps_left(begin)
    if not 0 <= step < steps:
        raise UsageError(f"`step` must be in [0, {steps}), got {step}.")
    return [*_traces(dataset, begin, step)]


def _traces(
    dataset: "StreamingTokenDataset",
    begin: Cursor,
    step: int,
    among: tuple[int, Ints] | None = None,
) -> Iterator[SequenceTrace]:
    """Trace the sequences of a step; `among` names a stream and sequences of the longest length."""
    phase = dataset.plan.phase_of(begin, step)
    streams, sequences = dataset.plan.step_of_all_ranks(begin, step)
    wanted = sequences >= 0  # the others fill up the last batch of an evaluation
    if among is not None:
        stream, numbers = among
        wanted = (streams == stream) & np.isin(sequences // phase.per_position, numbers)
    for index in np.flatnonzero(wanted).tolist():
        stream, sequence = int(streams[index]), int(sequences[index])
        yield SequenceTrace(
            rank=index // phase.batch_size,
            stream=stream,
            sequence=sequence,
            spans=_spans(dataset, stream, sequence, phase.length),
        )


def trace_document(
    dataset: "StreamingTokenDataset",
    source: str,
    row: int,
    *,
    epoch: int = 0,
    cursor: Cursor | None = None,
) -> list[DocumentVisit]:
    """Find the steps of an epoch that hold a document, in order; none if it was left out.

    This inverts the order, so only the table of the document's part is searched.

    Args:
        dataset: the dataset of any rank.
        source: the URL of the source file, or an ending that no other file has.
        row: the row of the document in the file, from 0.
        epoch: the number of the epoch, for a run that changed no setting before it.
        cursor: a cursor of the epoch, for a run that did.

    Raises:
        UsageError: the data hold no such document, or several.
        CorruptDatasetError: a record or table of documents is missing or damaged.
    """
    plan, reading = dataset.plan, dataset.batch_reader.source
    start = replace(cursor or plan.start(epoch), position=0)
    visits: list[DocumentVisit] = []
    found = 0
    for stream, cache in enumerate(dataset.reader.caches):
        for begin, end, origin in split_documents(cache).find(source, row):
            found += 1
            document = DocumentRanges(np.array([begin]), np.array([end - begin]))
            sequences = reading.sequences_with(stream, document)
            visits += [
                DocumentVisit(
                    step=step, rank=trace.rank, stream=stream, sequence=trace.sequence, span=span
                )
                for step in plan.steps_with(start, stream, sequences)
                for trace in _traces(dataset, start, step, (stream, sequences))
                for span in trace.spans
                if span.document == origin
            ]
    if not found:
        raise UsageError(
            f"No document of split {dataset.split!r} comes from row {row} of {source}. Is it in "
            "another split, empty, or dropped? `shardmill inspect` lists the sources."
        )
    return sorted(visits, key=lambda visit: (visit.step, visit.rank))


def write_traces(traces: Mapping[int, Sequence[SequenceTrace]], path: str | Path) -> int:
    """Write the documents of some steps to a Parquet file; return the number of segments.

    Args:
        traces: the traces of each step.
        path: the path of the file, which has a row per segment.

    Raises:
        OSError: the file cannot be written; no part of it is left.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("step", "rank", "stream", "sequence", *(each.name for each in fields(DocumentSpan)))
    lines = [
        (step, trace.rank, trace.stream, trace.sequence, *astuple(span))
        for step, sequences in traces.items()
        for trace in sequences
        for span in trace.spans
    ]
    schema = pa.schema([(name, pa.string() if name == "source" else pa.int64()) for name in names])
    columns = [*zip(*lines, strict=True)] or [()] * len(names)
    temporary = Path(f"{path}.tmp")
    try:
        pq.write_table(pa.table(columns, schema), temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return len(lines)


def _spans(
    dataset: "StreamingTokenDataset", stream: int, sequence: int, length: int
) -> tuple[DocumentSpan, ...]:
    """Find the documents of a sequence, in order."""
    source, cache = dataset.batch_reader.source, dataset.reader.caches[stream]
    spans: list[DocumentSpan] = []
    column = 0  # the offset in the row at which the segment begins
    row = source.locate(np.array([stream]), np.array([sequence]), length).spans(slice(0, 1))
    for begin, tokens, room in zip(*(each.tolist() for each in row[2:]), strict=True):
        end = begin + tokens
        for documents in split_documents(cache).between(begin, end):
            # The documents that end after the segment's first token and begin before its end.
            low = int(np.searchsorted(documents.ends, begin, side="right"))
            high = int(np.searchsorted(documents.starts, end))
            for number in range(low, high):
                first, last = int(documents.starts[number]), int(documents.ends[number])
                start = max(begin, first)
                spans.append(
                    DocumentSpan(
                        **asdict(documents.source_row(number)),
                        first=start - first,
                        tokens=min(end, last) - start,
                        position=column + start - begin,
                    )
                )
        column += room
    return tuple(spans)
