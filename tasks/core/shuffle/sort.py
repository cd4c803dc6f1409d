"""Phase one: it writes the documents of a part to spills on scratch, in limited memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.memory import within_memory
from streaming_ext.format.duplicates import fixed_binary
from streaming_ext.format.layout import SPLITS, Split
from streaming_ext.format.provenance import KEPT_PREFIX
from streaming_ext.format.record import SplitPart
from streaming_ext.format.shuffled import KEY_BITS, Keys, document_keys
from streaming_ext.format.spec import DatasetSpec, NearRule
from streaming_ext.store import LocalStorage
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.sketches import Sketches, sketch_keys, sketches_of
from streaming_ext.writing.part_documents import PartDocuments
from streaming_ext.writing.part_files import Tokens
from tasks.core.shuffle.spills import (
    Spill,
    SpillIndex,
    SpillWriter,
    as_one,
    block_bits,
    digests_path,
    sorted_blocks,
    spill_path,
)

SPILL_BYTES: Final = 192 * 2**20  # per sorted spill; sorting takes as much memory again
MOST_DIGEST_BYTES: Final = 2**26  # per spill of hashes
MERGED_BYTES: Final = 2**26  # merged at a time, if the spills of a part become one
_SKETCHED: Final = 2**12  # documents whose sketches are added at a time

# `group` and `row` name a document: its source and its row there, or without a shuffle its part and
# its row there. Phase two adds the rows of the source that earlier parts have.
DIGESTS: Final = pa.schema(
    [
        ("high", pa.uint64()),  # halves of the hash
        ("low", pa.uint64()),
        ("group", pa.int32()),
        ("row", pa.int64()),
        ("key", pa.uint64()),  # of the shuffle; without one, the note of `EarlierTexts`
    ]
)
_DOCUMENTS: Final = pa.schema(
    [
        ("key", pa.uint64()),  # of the shuffle; 0 without one
        ("group", pa.int32()),
        ("row", pa.int64()),
        ("place", pa.int64()),  # the position in its source
        ("tokens", pa.uint32()),  # without its end-of-text id
        ("text_bytes", pa.uint32()),
        ("in_holdout", pa.bool_()),
        ("ids", pa.large_binary()),  # with its end-of-text id; null if the text is a known copy
    ]
)


def documents_schema(kept: Sequence[str]) -> pa.Schema:
    """Return the columns of documents in a spill, including the kept columns of the sources."""
    return pa.schema([*_DOCUMENTS, *((f"{KEPT_PREFIX}{name}", pa.null()) for name in kept)])


def sketches_schema(rule: NearRule) -> pa.Schema:
    """Return the columns of spills of sketches, which have a row for each key of a document."""
    return pa.schema(
        [
            ("key", pa.uint64()),  # of the sketch, or of a band
            ("group", pa.int32()),
            ("row", pa.int64()),
            ("shuffle_key", pa.uint64()),
            ("sketch", pa.binary(rule.bins)),
        ]
    )


def sketched(tokens: Tokens, spec: DatasetSpec) -> Iterator[Sketches]:
    """Yield the sketches of documents, in batches; none if near copies are not looked for."""
    if (rule := spec.listed_near) is None:
        return
    ends = np.cumsum(tokens.lengths + 1) - 1
    begins = ends - tokens.lengths
    begins = without_bos(tokens.stream, begins, spec.tokenizer.bos_id)
    yield from sketches_of(tokens.stream, begins, ends, rule)


def without_bos(stream: npt.NDArray[Any], begins: Ints, bos_id: int | None) -> Ints:
    """Return where documents begin, after the beginning-of-text id if they have one."""
    return begins if bos_id is None else begins + (stream[begins] == bos_id)


def documents_batch(
    stream: npt.NDArray[Any],
    columns: Sequence[npt.NDArray[Any]],
    left_out: Flags,
    kept: Mapping[str, pa.Array],
) -> pa.RecordBatch:
    """Return documents in the form of spills; all arrays but the first: (documents,).

    Args:
        stream: the ids, with an end-of-text id after each document, except for documents left out.
        columns: the columns of the schema above before the ids.
        left_out: the flags of documents that are known to be copies.
        kept: the values of each kept column.
    """
    arrays = [pa.array(each, kind) for each, kind in zip(columns, _DOCUMENTS.types, strict=False)]
    sizes = np.where(left_out, 0, (columns[4] + 1) * stream.itemsize)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    valid = pa.py_buffer(np.packbits(~left_out, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(stream)]
    ids = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(left_out), buffers)
    return pa.record_batch([*arrays, ids, *kept.values()], names=documents_schema([*kept]).names)


def ids_of(ids: pa.LargeBinaryArray, dtype: str) -> npt.NDArray[Any]:
    """Return the ids of some documents, joined: (tokens,)."""
    _, offsets, data = ids.buffers()
    edges = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    first, last = int(edges[0]), int(edges[-1])
    return np.frombuffer(data or b"", np.uint8)[first:last].view(dtype)


class SortedSpills:
    """A writer of the spills of a part, each sorted by the first column of its documents.

    Attributes:
        spills: the spills written so far, in the order of the documents that were added.
    """

    def __init__(
        self,
        folder: Path,
        path_of: Callable[[int], str],
        schema: pa.Schema,
        *,
        most: int | None = None,
    ) -> None:
        """Begin without a spill.

        Args:
            folder: the folder on scratch.
            path_of: a function that makes the path of a spill from its number.
            schema: the schema of the documents.
            most: the most bytes per spill; a larger batch is a spill by itself.
        """
        self._folder, self._path_of, self._schema = folder, path_of, schema
        self._most = within_memory(most or SPILL_BYTES)
        self._batches: list[pa.RecordBatch] = []
        self._held = 0
        self.spills: list[Spill] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add documents, in the order of the sources."""
        if self._held and self._held + batch.nbytes > self._most:
            self._flush()
        self._batches.append(batch)
        self._held += batch.nbytes

    def finish(self, *, as_one_spill: bool = False) -> tuple[Spill, ...]:
        """Write the last spill; return all spills, or merge them and return the result."""
        if self._held:
            self._flush()
        if as_one_spill and len(self.spills) > 1:
            self._merge()
        return tuple(self.spills)

    def _flush(self) -> None:
        documents = as_one(self._batches, self._schema)
        self._batches, self._held = [], 0
        self._write(
            self._path_of(len(self.spills)),
            sorted_blocks(documents, block_bits(documents.nbytes)),
        )

    def _write(self, path: str, blocks: Iterator[pa.RecordBatch]) -> None:
        file, writer = self._folder / path, SpillWriter(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb") as out:
            writer.add(out, blocks)
        self.spills.append(writer.spill)

    def _merge(self) -> None:
        """Merge all spills into one.

        Each part of phase two reads a range of each spill. On object storage, each range is a
        request: a part of 10 GiB with one spill, not sixty, needs a sixtieth of the requests.
        """
        size = sum(spill.file.size for spill in self.spills)
        bits, index = block_bits(size), SpillIndex.of(self.spills)
        at_once, shift = max(1, MERGED_BYTES * 2**bits // size), KEY_BITS - bits
        scratch = LocalStorage(self._folder)

        def blocks() -> Iterator[pa.RecordBatch]:
            for first in range(0, 2**bits, at_once):
                last = min(first + at_once, 2**bits)
                found = index.read(scratch, first << shift, last << shift, self._schema)
                yield from sorted_blocks(found, bits, first, last)

        self._write(self._path_of(len(self.spills)), blocks())
        *merged, _ = self.spills
        for spill in merged:
            (self._folder / spill.file.path).unlink()
        self.spills = self.spills[-1:]


def spill_sketches(
    spills: SortedSpills,
    names: tuple[Ints, Ints, Keys],
    sketches: Iterable[Sketches],
    rule: NearRule,
) -> None:
    """Add sketches of documents to spills, once under each of their keys.

    Args:
        spills: the spills.
        names: the group, row and shuffle key of each document: (documents,) each.
        sketches: the sketches of the documents, in batches.
        rule: the rule for near copies.
    """
    schema, first = sketches_schema(rule), 0
    for batch in chain.from_iterable(_cut(each, _SKETCHED) for each in sketches):
        own = slice(first, first := first + len(batch))
        keys = sketch_keys(batch, rule)
        ways = len(keys)
        columns = [
            pa.array(np.tile(column[own], ways), kind)
            for column, kind in zip(names, schema.types[1:4], strict=True)
        ]
        held = fixed_binary(np.tile(batch, (ways, 1)))
        spills.add(pa.record_batch([pa.array(keys.ravel()), *columns, held], schema=schema))


def _cut(sketches: Sketches, most: int) -> Iterator[Sketches]:
    return (sketches[first : first + most] for first in range(0, len(sketches), most))


class SpillInOrder:
    """A writer of the only spill of an unshuffled part, with a block per batch of documents."""

    def __init__(self, folder: Path, path: str) -> None:
        """Create the empty file."""
        self._file, self._writer = folder / path, SpillWriter(path)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.touch(exist_ok=False)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add documents, in the order of the source."""
        with self._file.open("ab") as out:
            self._writer.add(out, [batch])

    def finish(self, *, as_one_spill: bool = True) -> tuple[Spill, ...]:
        """Return the only spill."""
        return (self._writer.spill,)


class Spilled:
    """A writer of documents to spills, with hashes of their texts if copies are looked for.

    Attributes:
        spills: the spills of the documents, after `finish`.
        digests: the spills of the hashes, after `finish`.
    """

    def __init__(
        self,
        folder: Path,
        part: int,
        spec: DatasetSpec,
        documents: PartDocuments,
        *,
        first_source: int = 0,
        one_spill: bool = False,
    ) -> None:
        """Begin with no spill.

        Args:
            folder: an empty folder on scratch.
            part: the number of the part.
            spec: the specification of the dataset.
            documents: the documents of the part, as they are read.
            first_source: the number of the first span's source; those of other spans follow.
            one_spill: True to merge all sorted spills into one at the end.
        """
        self._part, self._spec, self._documents = part, spec, documents
        self._first_source, self._one_spill = first_source, one_spill
        schema = documents_schema(spec.keep_columns)
        self._writer = (
            SpillInOrder(folder, spill_path(part, 0))
            if spec.shuffle is None
            else SortedSpills(folder, partial(spill_path, part), schema)
        )
        hashes = DIGESTS if spec.near is None else sketches_schema(spec.near)
        self._digests = SortedSpills(
            folder, partial(digests_path, part), hashes, most=MOST_DIGEST_BYTES
        )
        self._of_spans = np.zeros(len(documents.part.spans), np.int64)
        self._counts = np.zeros((2, 2), np.int64)  # documents and tokens of each split
        self.spills: tuple[Spill, ...] = ()
        self.digests: tuple[Spill, ...] = ()

    @property
    def documents(self) -> tuple[int, ...]:
        """The number of documents of each span."""
        return tuple(self._of_spans.tolist())

    def add(self, tokens: Tokens) -> None:
        """Add documents."""
        batch, kept = tokens.batch, tokens.kept
        rows, positions = batch.rows[kept], batch.positions[kept]
        if not len(rows):
            return
        spans, own_rows = self._documents.origins(rows)
        self._of_spans += np.bincount(spans, minlength=len(self._of_spans))
        for split in range(2):
            lengths = tokens.lengths[tokens.in_holdout == bool(split)]
            self._counts[split] += len(lengths), len(lengths) + lengths.sum()
        keys, groups = np.zeros(len(rows), np.uint64), np.full(len(rows), self._part)
        if self._spec.shuffle is not None:
            groups, rows = spans + self._first_source, own_rows
            keys = document_keys(self._spec.shuffle_seed, groups, positions)
        text_bytes = np.diff(text_buffers(batch.texts)[1])[kept]
        columns = keys, groups, rows, positions, tokens.lengths, text_bytes, tokens.in_holdout
        values = dict(zip(self._spec.keep_columns, tokens.values, strict=True))
        self._writer.add(documents_batch(tokens.stream, columns, tokens.left_out, values))
        if tokens.digests is not None:
            noted = keys if tokens.notes is None else tokens.notes[kept]
            high, low = tokens.digests[kept].T
            found = zip((high, low, groups, rows, noted), DIGESTS.types, strict=True)
            self._digests.add(pa.record_batch([pa.array(*each) for each in found], schema=DIGESTS))
        if (near := self._spec.near) is not None:
            spill_sketches(self._digests, (groups, rows, keys), sketched(tokens, self._spec), near)

    def finish(self) -> dict[Split, SplitPart]:
        """Write the last spills; return the counts of each split, in which nothing is packed."""
        self.digests = self._digests.finish()
        self.spills = self._writer.finish(as_one_spill=self._one_spill)
        counts = dict(zip(SPLITS, self._counts.tolist(), strict=True))
        return {
            split: SplitPart(documents=documents, tokens=tokens, padding=0, shards=())
            for split, (documents, tokens) in counts.items()
            if split in self._spec.splits
        }
