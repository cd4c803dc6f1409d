"""Chosen samples of a dataset as text: its pieces of documents, and where each came from."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from streaming_ext.base.errors import CorruptDatasetError, UsageError, one_line
from streaming_ext.format.layout import SPLITS, Split, index_path
from streaming_ext.format.manifest import Manifest, index_file
from streaming_ext.format.provenance import Place
from streaming_ext.format.shard import TokenArray
from streaming_ext.store import Storage
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.reading.dataset_files import (
    MAX_JSON_BYTES,
    DatasetFiles,
    naming,
    open_dataset,
    open_tokenizer,
    places_of,
    read_record,
)
from tasks.core.reading.documents import documents_of, read_tokens


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
    tokenizer = open_tokenizer(files, manifest.spec)
    index = index_file(split, manifest.splits[split].index, files.sizes)
    with naming(files, index.path):
        data = files.read(index, limit=MAX_JSON_BYTES)
        table = manifest.spec.shard_format.table(data, where=index.path)
        # ends: (shards,), samples up to and with each
        ends, parts = np.cumsum(table.samples), [int(n.partition("/")[0]) for n in table.raw_names]
        wanted = sorted(set(samples))
        shards = np.searchsorted(ends, wanted, side="right")
        decoded: dict[int, DecodedSample] = {}
        of_shards = [parts[shard] for shard in shards]
    for part, of_part in groupby(zip(wanted, shards, of_shards, strict=True), itemgetter(2)):
        first = parts.index(part)
        opened = _Part(files, manifest, part, split, tokenizer)
        for sample, shard, _ in of_part:
            before = int(ends[shard] - table.samples[shard])
            in_part = sample - int(ends[first] - table.samples[first])
            decoded[sample] = opened.decode(sample, shard - first, sample - before, in_part)
    return [decoded[sample] for sample in samples]


class _Part:
    """A part of which samples are decoded, in their order."""

    def __init__(
        self, files: DatasetFiles, manifest: Manifest, part: int, split: Split, tokenizer: Tokenizer
    ) -> None:
        self._files, self._split, self._tokenizer = files, split, tokenizer
        self._record = read_record(files, manifest, part)
        self._places = places_of(files, manifest, self._record)
        with naming(files, self._record.documents.path):
            listed = documents_of(files, self._record)
        own = listed.filter(pc.equal(listed["split"], SPLITS.index(split)))
        self._rows, self._sources = own["row"].to_numpy(), own["source"].to_numpy()
        # ends: (documents,), behind the end-of-text id of each in the stream of the split
        self._ends = np.cumsum(own["tokens"].to_numpy() + 1)
        self._starts = self._ends - own["tokens"].to_numpy() - 1
        self._read: tuple[int, TokenArray] | None = None

    def decode(self, sample: int, number: int, in_shard: int, in_part: int) -> DecodedSample:
        """Decode one sample: of a shard, by its number in the part, there and in the part."""
        shards = self._record.splits[self._split].shards
        with naming(self._files, index_path(self._split)):
            path = f"{self._split}/{shards[number].name}"
        with naming(self._files, path):
            if self._read is None or self._read[0] != number:
                tokens = read_tokens(self._files, self._split, shards[number], self._record.spec)
                self._read = number, tokens
            ids = self._read[1][in_shard]
        first, after = in_part * len(ids), (in_part + 1) * len(ids)
        here = np.flatnonzero((self._starts < after) & (self._ends > first))
        # ends of documents, and padding behind the last one
        expected = self._ends[here] - 1 - first
        last = int(expected[-1]) if len(here) else -1
        padding = np.arange(last + 1, len(ids))
        found = np.flatnonzero(ids == self._record.spec.tokenizer.eot_id)
        with naming(self._files, self._record.documents.path):
            if not np.array_equal(found, np.append(expected[expected < len(ids)], padding)):
                raise CorruptDatasetError(f"documents of sample {sample} end elsewhere")
        return DecodedSample(
            split=self._split,
            sample=sample,
            shard=path,
            sample_in_shard=in_shard,
            pieces=tuple(self._piece(document, ids, first) for document in here.tolist()),
            padding=len(padding),
        )

    def _piece(self, document: int, ids: npt.NDArray[Any], first: int) -> Piece:
        """What a sample, whose ids begin at `first` of the stream, holds of a document."""
        start, end = int(self._starts[document]) - first, int(self._ends[document]) - 1 - first
        own = ids[max(start, 0) : end]
        place = self._places.of(int(self._rows[document]), int(self._sources[document]))
        return Piece(
            text=_text(self._tokenizer, own, cut_start=start < 0, cut_end=end >= len(ids)),
            tokens=len(own),
            begins=start >= 0,
            ends=end < len(ids),
            first_token=max(-start, 0),
            document_tokens=end - start,
            part=self._record.part,
            row=place.row,
            source=place.source,
            from_byte=place.from_byte,
        )


def _text(tokenizer: Tokenizer, ids: npt.NDArray[Any], *, cut_start: bool, cut_end: bool) -> str:
    try:
        data = tokenizer.decode_bytes(ids.tolist())
    except Exception as error:  # noqa: BLE001 - libraries raise anything on ids of no token
        return f"(ids that cannot be decoded: {one_line(error)})"
    return decode_piece(data, cut_start=cut_start, cut_end=cut_end)


def decode_piece(data: bytes, *, cut_start: bool, cut_end: bool) -> str:
    """UTF-8 to text, without the character that is cut at an edge where the text goes on."""
    if cut_start:
        data = data[:3].lstrip(bytes(range(0x80, 0xC0))) + data[3:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(data, final=not cut_end)
