"""Chosen samples of a dataset as text: its pieces of documents, and where each came from."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.extended.generations import index_file
from streaming_ext.dataset.layout import Split, index_path
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.places import Place, PlacesOfPart, PlacesOfSources
from streaming_ext.dataset.provenance import documents_limit, read_provenance
from streaming_ext.dataset.record import PartRecord
from streaming_ext.dataset.shuffled.source_table import sources_of
from streaming_ext.errors import CorruptDatasetError, UsageError, one_line
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, is_panic
from tasks.core.reading.dataset_files import DatasetFiles, open_tokenizer
from tasks.core.reading.opened import damaged, open_dataset, read_listed, read_record
from tasks.core.reading.shard_tokens import read_tokens
from tasks.core.storage import Storage

# Length in bytes of a character -> what its first byte may be.
_FIRST_BYTES = {4: range(0xF0, 0xF5), 3: range(0xE0, 0xF0), 2: range(0xC2, 0xE0)}
_CONTINUATION = range(0x80, 0xC0)  # bytes of UTF-8 that are not the first of a character


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """What a sample holds of one document.

    Attributes:
        text: bytes that are no UTF-8 are replaced; a character cut by the edge of the sample is
            left out.
        tokens: ids of the text, the end-of-text id left out.
        begins, ends: whether the document's first token, or its end-of-text id, is in the sample.
        first_token: position in the document of the piece's first token.
        document_tokens: ids of the whole document, the end-of-text id left out.
        part, row, source: row of the source file that the document is.
        from_byte: rows are counted from those that begin here on; 0: from the file's beginning.
    """

    text: str
    tokens: int
    begins: bool
    ends: bool
    first_token: int
    document_tokens: int
    part: int
    row: int
    source: str
    from_byte: int = 0

    @property
    def place(self) -> Place:
        """The row, for people."""
        return Place(self.source, self.row, self.from_byte)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedSample:
    """One sample; `shard` is the file that it lies in, relative to the dataset's root."""

    split: Split
    sample: int
    shard: str
    sample_in_shard: int
    pieces: tuple[Piece, ...]
    padding: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where a sample lies: shard `shard` of a part, and the number of samples before it there."""

    sample: int
    part: int
    shard: int
    in_shard: int
    in_part: int


@dataclass(frozen=True, slots=True)
class _Span:
    """A document, by the positions of its first id and its end-of-text id in the stream."""

    row: int
    start: int
    end: int
    source: int = 0  # its number, in a shuffled dataset


def decode_samples(
    storage: Storage, split: Split, samples: Sequence[int], *, generation: str | None = None
) -> list[DecodedSample]:
    """Decode samples of a split, in the order they are asked for; only their shards are read.

    Args:
        storage: where the dataset lies.
        split: of it.
        samples: their numbers.
        generation: see `open_dataset`.

    Raises:
        UsageError: there is no such split or sample.
        NotADatasetError: there is no published dataset at this place.
        CorruptDatasetError: a file that is needed is missing or damaged.
    """
    files, manifest = open_dataset(storage, generation=generation)
    if split not in manifest.splits:
        raise UsageError(f"{storage} has no split {split!r}; it has {', '.join(manifest.splits)}.")
    total = manifest.splits[split].samples
    for sample in samples:
        if not 0 <= sample < total:
            range_text = f"in [0, {total})" if total else "none: the split is empty"
            raise UsageError(
                f"`sample` must be {range_text} for {split} of {storage}, got {sample}."
            )
    by_part: dict[int, list[_Place]] = defaultdict(list)
    for place in _find(files, manifest, split, samples):
        by_part[place.part].append(place)
    tokenizer = open_tokenizer(files, manifest.spec)
    decoded: dict[int, DecodedSample] = {}
    table = _sources(files, manifest)
    for part, places in by_part.items():
        record = read_record(files, manifest, part)
        documents = table or PlacesOfPart(record, manifest)
        for place, ids in _read_shards(files, record, split, places):
            spans = _spans(files, record, split, place.in_part)
            _check_ends(files, record, place, ids, spans)
            decoded[place.sample] = _decode(
                record, documents, split, place, tokens=ids, spans=spans, tokenizer=tokenizer
            )
    return [decoded[sample] for sample in samples]


def _sources(files: DatasetFiles, manifest: Manifest) -> PlacesOfSources | None:
    """The places of documents in the sources of a shuffled dataset; None where it is not."""
    if manifest.shuffled is None:
        return None
    file = manifest.shuffled.sources
    try:
        return PlacesOfSources(sources_of(read_listed(files, file)))
    except CorruptDatasetError as error:
        raise damaged(files, file.path, error) from None


def _find(
    files: DatasetFiles, manifest: Manifest, split: Split, samples: Sequence[int]
) -> list[_Place]:
    """Where samples lie, by the merged index."""
    index = index_file(split, manifest.splits[split].index, files.sizes)
    try:
        table = manifest.spec.shard_format.table(read_listed(files, index), where=index.path)
        counts = table.samples.tolist()
        parts = [int(name.partition("/")[0]) for name in table.raw_names]
    except (ValueError, CorruptDatasetError) as error:
        raise damaged(files, index.path, error) from None
    # ends: (shards,), samples up to and with each
    ends = np.cumsum(counts)
    places = []
    for sample in sorted(set(samples)):
        shard = int(np.searchsorted(ends, sample, side="right"))
        if shard == len(ends) or not 0 <= parts[shard] < len(manifest.parts):
            raise damaged(files, index.path, CorruptDatasetError(f"no shard of sample {sample}"))
        first_of_part = parts.index(parts[shard])
        before_part = int(ends[first_of_part]) - counts[first_of_part]
        places.append(
            _Place(
                sample=sample,
                part=parts[shard],
                shard=shard - first_of_part,
                in_shard=sample - int(ends[shard]) + counts[shard],
                in_part=sample - before_part,
            )
        )
    return places


def _read_shards(
    files: DatasetFiles, record: PartRecord, split: Split, places: Sequence[_Place]
) -> Iterator[tuple[_Place, npt.NDArray[Any]]]:
    """The ids of samples of a part in ascending order, each shard read once."""
    shards = record.splits[split].shards if split in record.splits else ()
    for number, here in groupby(places, key=lambda place: place.shard):
        if number >= len(shards):
            error = CorruptDatasetError("not made of the parts' records")
            raise damaged(files, index_path(split), error)
        try:
            tokens = read_tokens(files, split, shards[number], record.spec)
            for place in here:
                yield place, tokens[place.in_shard]
        except (CorruptDatasetError, IndexError) as error:
            raise damaged(files, f"{split}/{shards[number].name}", error) from None


def _check_ends(
    files: DatasetFiles,
    record: PartRecord,
    place: _Place,
    tokens: npt.NDArray[Any],
    spans: list[_Span],
) -> None:
    """Make sure that the documents end where the provenance says; padding comes after the last."""
    first = place.in_part * record.spec.sequence_length
    last = max((span.end - first for span in spans), default=-1)
    expected = {span.end - first for span in spans if span.end - first < len(tokens)}
    expected |= set(range(last + 1, len(tokens)))
    if set(np.flatnonzero(tokens == record.spec.tokenizer.eot_id).tolist()) != expected:
        words = f"documents do not end where those of sample {place.sample} do"
        raise damaged(files, record.documents.path, CorruptDatasetError(words))


def _spans(files: DatasetFiles, record: PartRecord, split: Split, sample: int) -> list[_Span]:
    """The documents of which a sample holds a token, from the lengths of those before them."""
    length = record.spec.sequence_length
    first, after = sample * length, (sample + 1) * length
    spans: list[_Span] = []
    data = read_listed(
        files, record.documents, limit=documents_limit(record.rows, len(record.spec.keep_columns))
    )
    position = 0
    try:
        for documents in read_provenance(data):
            mask = documents.of(split)
            ends = position + np.cumsum(documents.tokens[mask] + 1)  # each after its end of text
            starts = ends - documents.tokens[mask] - 1
            here = np.flatnonzero((starts < after) & (ends > first))
            spans += [
                _Span(
                    int(documents.rows[mask][index]),
                    int(starts[index]),
                    int(ends[index]) - 1,
                    0 if documents.sources is None else int(documents.sources[mask][index]),
                )
                for index in here
            ]
            position = int(ends[-1]) if len(ends) else position
            if position >= after:
                break
    except CorruptDatasetError as error:
        raise damaged(files, record.documents.path, error) from None
    return spans


def _decode(
    record: PartRecord,
    documents: PlacesOfPart | PlacesOfSources,
    split: Split,
    place: _Place,
    *,
    tokens: npt.NDArray[Any],
    spans: list[_Span],
    tokenizer: Tokenizer,
) -> DecodedSample:
    first = place.in_part * record.spec.sequence_length
    after = first + len(tokens)
    pieces = []
    for span in spans:
        start, end = max(span.start, first), min(span.end, after)
        ids = tokens[start - first : end - first]
        begins, ends = span.start >= first, span.end < after
        found = documents.of(span.row, span.source)
        pieces.append(
            Piece(
                text=_text(tokenizer, ids, cut_start=not begins, cut_end=not ends),
                tokens=len(ids),
                begins=begins,
                ends=ends,
                first_token=start - span.start,
                document_tokens=span.end - span.start,
                part=record.part,
                row=found.row,
                source=found.source,
                from_byte=found.from_byte,
            )
        )
    covered = sum(piece.tokens + piece.ends for piece in pieces)
    return DecodedSample(
        split=split,
        sample=place.sample,
        shard=f"{split}/{record.splits[split].shards[place.shard].name}",
        sample_in_shard=place.in_shard,
        pieces=tuple(pieces),
        padding=len(tokens) - covered,
    )


def _text(tokenizer: Tokenizer, ids: npt.NDArray[Any], *, cut_start: bool, cut_end: bool) -> str:
    try:
        data = tokenizer.decode_bytes(ids.tolist())
    except BaseException as error:
        # tiktoken raises KeyError on an id that stands for nothing, or panics.
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        return f"(ids that cannot be decoded: {one_line(error)})"
    return decode_piece(data, cut_start=cut_start, cut_end=cut_end)


def decode_piece(data: bytes, *, cut_start: bool, cut_end: bool) -> str:
    """UTF-8 to text, without the character that is cut at an edge where the text goes on."""
    start, end = 0, len(data)
    if cut_start:
        while start < min(3, len(data)) and data[start] in _CONTINUATION:
            start += 1
    if cut_end:
        # The last character: its first byte is at most three back; it tells how many follow.
        for back in range(1, min(3, end - start) + 1):
            byte = data[end - back]
            if byte in _CONTINUATION:
                continue
            length = next((n for n, first in _FIRST_BYTES.items() if byte in first), 1)
            end -= back if length > back else 0
            break
    return data[start:end].decode(errors="replace")
