"""Which documents, of which source file and row, a sequence holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.places import Place, PlacesOfPart
from streaming_ext.dataset.reading import record_of
from streaming_ext.errors import CorruptDatasetError, UsageError
from streaming_ext.sampler.epoch_plan import Cursor
from streaming_ext.sampler.order import Ints
from streaming_ext.shards.cache import ShardCache

if TYPE_CHECKING:
    from streaming_ext.token_dataset import StreamingTokenDataset


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentSpan:
    """A piece of a document in a sequence.

    Attributes:
        source: URL of the source file.
        row: of the document in its source file, from 0.
        from_byte: rows are counted from those that begin here on, where a node keeps some pieces
            of a file alone; 0: from the file's beginning.
        first: token of the document that the piece begins with, from 0.
        tokens: length of the piece, the end-of-text id counted.
        place: token of the sequence that the piece begins at.
    """

    source: str
    row: int
    first: int
    tokens: int
    place: int
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
    if epoch < 0:
        raise UsageError(f"`epoch` must be at least 0, got {epoch}.")
    plan = dataset.plan
    start = plan.start(epoch) if cursor is None else cursor
    begin = Cursor(epoch=start.epoch, place=0, before=start.before)
    if not 0 <= step < plan.num_steps(0):
        raise UsageError(f"`step` must be in [0, {plan.num_steps(0)}), got {step}.")
    streams, sequences = plan.whole_step(begin, step)
    tables: dict[tuple[int, int], _Documents] = {}
    traces = []
    for place, (stream, sequence) in enumerate(
        zip(streams.tolist(), sequences.tolist(), strict=True)
    ):
        if sequence < 0:  # fills up the last batch of an evaluation
            continue
        pieces = dataset.batch_reader.source.pieces_of(stream, sequence, dataset.sequence_length)
        spans = _spans(dataset.reader.caches[stream], stream, pieces, tables)
        rank = place // plan.slices.batch_size
        traces.append(SequenceTrace(rank=rank, stream=stream, sequence=sequence, spans=spans))
    return traces


@dataclass(frozen=True, kw_only=True, slots=True)
class _Documents:
    """The documents of a part in one split: all arrays of shape (documents,)."""

    places: PlacesOfPart
    rows: Ints
    ends: Ints  # in tokens from the part's start


def _spans(
    cache: ShardCache,
    stream: int,
    pieces: Sequence[tuple[int, int]],
    tables: dict[tuple[int, int], _Documents],
) -> tuple[DocumentSpan, ...]:
    """The documents of a sequence, which is made of some pieces of the split's stream."""
    spans: list[DocumentSpan] = []
    place = 0
    for begin, end in pieces:
        spans += [replace(span, place=place + span.place)
                  for span in _spans_of_piece(cache, stream, (begin, end), tables)]  # fmt: skip
        place += end - begin
    return tuple(spans)


def _spans_of_piece(
    cache: ShardCache,
    stream: int,
    piece: tuple[int, int],
    tables: dict[tuple[int, int], _Documents],
) -> Iterator[DocumentSpan]:
    """The documents of a piece of the stream; their places count from its beginning."""
    begin, end = piece
    index = cache.index
    if index.manifest is None:
        raise UsageError(f"{cache.source.url} does not say which documents it holds.")
    starts = index.token_starts
    parts = np.array([int(name.partition("/")[0]) for name in index.raw_names])
    first = int(np.searchsorted(starts, begin, side="right")) - 1
    last = int(np.searchsorted(starts, end - 1, side="right")) - 1
    for part in dict.fromkeys(parts[first : last + 1].tolist()):
        if (stream, part) not in tables:
            tables[stream, part] = _read_documents(cache, index.manifest, part)
        documents = tables[stream, part]
        origin = int(starts[np.argmax(parts == part)])
        low, high = max(0, begin - origin), end - origin
        document = int(np.searchsorted(documents.ends, low, side="right"))
        while document < len(documents.ends):
            opens = int(documents.ends[document - 1]) if document else 0
            if opens >= high:
                break
            start = max(low, opens)
            found = documents.places.of(int(documents.rows[document]))
            yield DocumentSpan(
                source=found.source,
                row=found.row,
                from_byte=found.from_byte,
                first=start - opens,
                tokens=min(high, int(documents.ends[document])) - start,
                place=origin + start - begin,
            )
            document += 1


def _read_documents(cache: ShardCache, manifest: Manifest, part: int) -> _Documents:
    import pyarrow.parquet as pq

    summary = next((each for each in manifest.parts if each.part == part), None)
    if summary is None:
        raise CorruptDatasetError(f"{cache.source.url}: the manifest does not know part {part}.")
    record = record_of(cache.source.read_listed(summary.record), where=summary.record.path)
    table = pq.read_table(BytesIO(cache.source.read_listed(record.documents)))
    chosen = np.asarray(table["split"]) == cache.index.split
    lengths = np.asarray(table["tokens"])[chosen].astype(np.int64) + 1  # and its end-of-text id
    return _Documents(
        places=PlacesOfPart(record, manifest),
        rows=np.asarray(table["row"])[chosen].astype(np.int64),
        ends=np.cumsum(lengths),
    )
