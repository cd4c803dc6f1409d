"""Which documents, of which source file and row, a sequence holds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.base.kinds import count
from streaming_ext.format.provenance import Place
from streaming_ext.order.epoch_plan import Cursor
from streaming_ext.reading.cache import ShardCache
from streaming_ext.training.documents_of_part import documents_between, find_document

if TYPE_CHECKING:
    from streaming_ext.training.token_dataset import StreamingTokenDataset

_MOST_EPOCHS = 2**31 - 1
_COLUMNS = (
    "step",
    "rank",
    "stream",
    "sequence",
    "source",
    "row",
    "from_byte",
    "first",
    "tokens",
    "position",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentSpan:
    """A segment of a document in a sequence.

    Attributes:
        source: URL of the source file.
        row: of the document in its source file, from 0.
        from_byte: rows are counted from those that begin here on, where a node keeps some segments
            of a file alone; 0: from the file's beginning.
        first: token of the document that the segment begins with, from 0.
        tokens: length of the segment, the end-of-text id counted.
        position: token of the sequence that the segment begins at.
    """

    source: str
    row: int
    first: int
    tokens: int
    position: int
    from_byte: int = 0

    @property
    def document(self) -> Place:
        """The row, for people."""
        return Place(self.source, self.row, self.from_byte)


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceTrace:
    """Where the tokens of a sequence come from; what no span covers is padding.

    Attributes:
        rank: data-parallel rank that reads it.
        stream: number of the stream.
        sequence: number of the sequence in its stream, in the order on disk.
        spans: its documents, in order.
    """

    rank: int
    stream: int
    sequence: int
    spans: tuple[DocumentSpan, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentVisit:
    """A step that holds a document, or a segment of it; see `SequenceTrace` for the words."""

    step: int
    rank: int
    stream: int
    sequence: int
    span: DocumentSpan


def trace_step(
    dataset: "StreamingTokenDataset", step: int, *, epoch: int = 0, cursor: Cursor | None = None
) -> list[SequenceTrace]:
    """The sequences of one step over all ranks, rank by rank in the order of their batches.

    Args:
        dataset: any rank's.
        step: counted from the start of the epoch.
        epoch: number of the epoch of a run that changed nothing on the way.
        cursor: the epoch's cursor of a run that did.

    Raises:
        UsageError: the epoch has no such step, or the dataset does not know its documents.
        CorruptDatasetError: a record or table of documents is missing or damaged.
    """
    epoch = count("epoch", epoch, least=0, most=_MOST_EPOCHS)
    plan = dataset.plan
    start = plan.start(epoch) if cursor is None else cursor
    begin = replace(start, position=0)
    steps = plan.steps_left(begin)
    if not 0 <= step < steps:
        raise UsageError(f"`step` must be in [0, {steps}), got {step}.")
    phase = plan.phase_of(begin, step)
    streams, sequences = plan.whole_step(begin, step)
    traces = []
    source = dataset.batch_reader.source
    for position, (stream, sequence) in enumerate(
        zip(streams.tolist(), sequences.tolist(), strict=True)
    ):
        if sequence < 0:  # fills up the last batch of an evaluation
            continue
        segments = source.segments_of(stream, sequence, phase.length)
        spans = _spans(dataset.reader.caches[stream], segments, source.multiple)
        rank = position // phase.batch_size
        traces.append(SequenceTrace(rank=rank, stream=stream, sequence=sequence, spans=spans))
    return traces


def trace_document(
    dataset: "StreamingTokenDataset",
    source: str,
    row: int,
    *,
    epoch: int = 0,
    cursor: Cursor | None = None,
) -> list[DocumentVisit]:
    """The steps of an epoch that hold a document, in their order; none where it was left out.

    The order is inverted: nothing is searched for but the document in its part's table.

    Args:
        dataset: any rank's.
        source: URL of the source file, or the end of it that no other file has.
        row: of the document in it, from 0.
        epoch: number of the epoch of a run that changed nothing on the way.
        cursor: the epoch's cursor of a run that did.

    Raises:
        UsageError: the data hold no such document, or several.
        CorruptDatasetError: a record or table of documents is missing or damaged.
    """
    epoch = count("epoch", epoch, least=0, most=_MOST_EPOCHS)
    plan, reading = dataset.plan, dataset.batch_reader.source
    start = plan.start(epoch) if cursor is None else replace(cursor, position=0)
    visits: list[DocumentVisit] = []
    found = 0
    for stream, cache in enumerate(dataset.reader.caches):
        for begin, end, position in find_document(cache, source, row):
            found += 1
            sequences = reading.sequences_with(stream, begin, end, dataset.sequence_length)
            for visit in plan.visits(start, stream, sequences):
                segments = reading.segments_of(stream, visit.sequence, visit.length)
                spans = [
                    span
                    for span in _spans(cache, segments, reading.multiple)
                    if span.document == position
                ]
                visits += [
                    DocumentVisit(
                        step=visit.step,
                        rank=visit.rank,
                        stream=stream,
                        sequence=visit.sequence,
                        span=span,
                    )
                    for span in spans
                ]
    if not found:
        raise UsageError(
            f"No document of split {dataset.split!r} comes from row {row} of {source}. Is it in "
            "another split, empty, or dropped? `shardmill inspect` lists the sources."
        )
    return sorted(visits, key=lambda visit: (visit.step, visit.rank))


def write_traces(traces: Mapping[int, Sequence[SequenceTrace]], path: str | Path) -> int:
    """Write the documents of some steps as a Parquet file, a line a segment; returns how many.

    Args:
        traces: by step.
        path: of the file.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = [
        {
            "step": step,
            "rank": trace.rank,
            "stream": trace.stream,
            "sequence": trace.sequence,
            **asdict(span),
        }
        for step, sequences in traces.items()
        for trace in sequences
        for span in trace.spans
    ]
    schema = pa.schema(
        [(name, pa.string() if name == "source" else pa.int64()) for name in _COLUMNS]
    )
    temporary = Path(f"{path}.tmp")
    try:
        pq.write_table(pa.Table.from_pylist(lines, schema), temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return len(lines)


def _spans(
    cache: ShardCache, segments: Sequence[tuple[int, int]], multiple: int
) -> tuple[DocumentSpan, ...]:
    """The documents of a sequence, which is made of some segments of the split's stream."""
    spans: list[DocumentSpan] = []
    position = 0
    for begin, end in segments:
        spans += [
            replace(span, position=position + span.position)
            for span in _spans_of_piece(cache, (begin, end))
        ]
        position += -(-(end - begin) // multiple) * multiple
    return tuple(spans)


def _spans_of_piece(cache: ShardCache, segment: tuple[int, int]) -> Iterator[DocumentSpan]:
    """The documents of a segment of the stream; their positions count from its beginning."""
    begin, end = segment
    for documents in documents_between(cache, begin, end):
        origin = documents.origin
        low, high = max(0, begin - origin), end - origin
        document = int(np.searchsorted(documents.ends, low, side="right"))
        while document < len(documents.ends):
            opens = int(documents.ends[document - 1]) if document else 0
            if opens >= high:
                break
            start = max(low, opens)
            found = documents.place(document)
            yield DocumentSpan(
                source=found.source,
                row=found.row,
                from_byte=found.from_byte,
                first=start - opens,
                tokens=min(high, int(documents.ends[document])) - start,
                position=origin + start - begin,
            )
            document += 1
