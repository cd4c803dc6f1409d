"""The search for copies between the phases: hashes are compared, one range after another.

If documents have the same hash, the first in the order of the sources stays. Block b of each spill
of copies holds the documents that are left out of part b of phase two.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.arrays import Ints, ceil_div, look_up
from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.format.duplicates import (
    ROW_BITS,
    Digests,
    Duplicates,
    KeptSketches,
    codes,
    duplicates_kind,
    duplicates_path,
    fixed_bytes,
    kept_digests_path,
)
from streaming_ext.format.layout import SHUFFLE_FOLDER
from streaming_ext.format.manifest import KeptDigests
from streaming_ext.format.schema import FileRecord
from streaming_ext.format.shuffled import KEY_BITS, Keys, key_range
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import Storage
from streaming_ext.text.text_hashes import first_ones
from tasks.core.reading.dataset_files import DatasetFiles, read_listed
from tasks.core.shuffle.near import NearCopies
from tasks.core.shuffle.sort import DIGESTS, sketches_schema
from tasks.core.shuffle.spills import Blocks, Spill, SpillIndex, SpillWriter, as_one

RANGE_DOCUMENTS = 2**21  # per comparison and per file of hashes; changes the bytes of the dataset
_COPIES: Final = pa.schema(
    [(name, pa.int64()) for name in ("group", "row", "first_group", "first_row")]
)
_NEAR_COPIES: Final = _COPIES.append(pa.field("matches", pa.int64()))


@dataclass(frozen=True, slots=True)
class OlderTexts:
    """The texts of the generations that a run extends.

    Attributes:
        files: the files of the dataset.
        generations: the hashes of the texts that each generation added, the oldest first.
        shuffled: True if the dataset is shuffled.
    """

    files: DatasetFiles
    generations: tuple[KeptDigests, ...]
    shuffled: bool

    def among(self, wanted: Keys, start: int, end: int) -> Digests:
        """Find texts by the upper halves of hashes; memory grows with the number of texts found.

        Args:
            wanted: the upper halves of hashes in [start, end), (documents,).
            start, end: the range of hashes.

        Raises:
            StorageError: a file cannot be read.
            CorruptDatasetError: a file is missing or damaged.
        """
        found = []
        for each in self.generations:
            count = len(each.files)
            # file i of n holds the hashes in [i / n, (i + 1) / n) of their range
            first, last = count * start // 2**KEY_BITS, ceil_div(count * end, 2**KEY_BITS)
            for file in each.files[first:last]:
                data = read_listed(self.files, file)
                batches = Digests.read(data, shuffled=self.shuffled)
                found += [batch.chosen(np.isin(batch.high, wanted)) for batch in batches]
        return Digests.joined(found)

    def sketches(self) -> Iterator[KeptSketches]:
        """Yield the sketches of a dataset without near copies, in batches of limited size.

        Raises:
            StorageError, CorruptDatasetError: see `among`.
        """
        for each in self.generations:
            for file in each.files:
                yield from KeptSketches.read(read_listed(self.files, file), shuffled=self.shuffled)


def put_comparison(
    storage: Storage,
    index: SpillIndex,
    parts: int,
    *,
    first_part: int,
    older: OlderTexts | None,
    spec: DatasetSpec,
) -> tuple[SpillIndex, KeptDigests]:
    """Put spills of the copies that each part of phase two leaves out, and hashes of the others.

    Memory does not grow with the number of documents, except for copies of the same text, and for
    near copies.

    Args:
        storage: the storage that holds the spills of hashes, or of sketches.
        index: the index of these spills.
        parts: the number of parts of phase two.
        first_part: the number of the first of these parts.
        older: the texts of the dataset that is extended; they come before all others.
        spec: the specification of the dataset; with a shuffle, parts are ranges of keys, and not
            the parts of phase one.

    Raises:
        StorageError: a spill cannot be read or put.
        CorruptDatasetError: a spill is damaged.
    """
    spills: list[Spill] = []
    kept: list[FileRecord] = []
    stayed, near, shuffled = 0, None, spec.shuffle is not None
    # ways: the keys per document; the first 1 / ways of the keys contains each document once
    ways = 1
    if spec.near is not None:
        ways = 1 + spec.near.bands
        sketches = iter(()) if older is None else older.sketches()
        near = NearCopies.found(storage, index, sketches, spec.near)
    documents = int(index.counts.sum()) // ways
    # starts: (parts,), the first key of each part, or its number
    starts = np.array(
        [key_range(part, parts)[0] if shuffled else first_part + part for part in range(parts)],
        np.uint64,
    )
    ranges = max(1, ceil_div(documents, RANGE_DOCUMENTS))
    for number in range(ranges):
        start, end = key_range(number, ranges * ways)
        stay: Digests | KeptSketches
        if near is None or spec.near is None:
            own = index.read(storage, start, end, DIGESTS)
            stay, copies, keys = _compared(own, older, start, end)
        else:
            own = index.read(storage, start, end, sketches_schema(spec.near))
            stay, copies, keys = _divided(own, near)
        order = np.argsort(keys if shuffled else copies["group"], kind="stable")
        edges = np.searchsorted((keys if shuffled else copies["group"].to_numpy())[order], starts)
        copies = copies.take(pa.array(order))
        path = f"{SHUFFLE_FOLDER}/copies-{number:05}.spill"
        writer, out = SpillWriter(path), io.BytesIO()
        for first, last in zip(edges, [*edges[1:], len(order)], strict=True):
            writer.add(out, [copies.slice(first, last - first)])
        storage.put(path, out.getvalue())
        spills.append(writer.spill)
        data = stay.to_bytes(shuffled=shuffled)
        kept.append(FileRecord.of(kept_digests_path(first_part, number), data))
        storage.put(kept[-1].path, data)
        stayed += len(stay.rows)
    return SpillIndex.of(spills), KeptDigests(documents=stayed, files=tuple(kept))


def _compared(
    own: pa.RecordBatch, older: OlderTexts | None, start: int, end: int
) -> tuple[Digests, pa.RecordBatch, Keys]:
    """Return the documents that stay, in the order of hashes; the copies; the copies' keys.

    Args:
        own: the documents whose hashes are in [start, end), in the schema `DIGESTS`.
        older: see `put_comparison`.
        start, end: the range of hashes.
    """
    high, low, groups, rows, keys = (column.to_numpy() for column in own.columns)
    known = Digests.joined([]) if older is None else older.among(high, start, end)
    high, low = np.append(known.high, high), np.append(known.low, low)
    groups, rows = np.append(known.groups, groups), np.append(known.rows, rows)
    keys = np.append(np.zeros(len(known.high), np.uint64), keys)
    order, firsts = first_ones(high, low)
    new, is_copy = order >= len(known.high), order != firsts
    stay, copies, firsts = order[new & ~is_copy], order[new & is_copy], firsts[new & is_copy]
    columns = groups[copies], rows[copies], groups[firsts], rows[firsts]
    return (
        Digests(high=high[stay], low=low[stay], groups=groups[stay], rows=rows[stay]),
        pa.record_batch([pa.array(column) for column in columns], schema=_COPIES),
        keys[copies],
    )


def _divided(own: pa.RecordBatch, near: NearCopies) -> tuple[KeptSketches, pa.RecordBatch, Keys]:
    """Return what `_compared` returns, for near copies; `own` is in the schema of sketches."""
    named = codes(own["group"].to_numpy(), own["row"].to_numpy())
    order = np.lexsort((named, own["key"].to_numpy()))
    own, named = own.take(pa.array(order)), named[order]
    is_copy, at = look_up(near.documents, named)
    witnesses, row_mask = near.witnesses[at], 2**ROW_BITS - 1
    copies = named[is_copy]
    columns = [copies >> ROW_BITS, copies & row_mask, witnesses >> ROW_BITS, witnesses & row_mask]
    stay = own.filter(pa.array(~is_copy))
    return (
        KeptSketches(stay["group"].to_numpy(), stay["row"].to_numpy(), fixed_bytes(stay["sketch"])),
        pa.record_batch(
            [pa.array(column) for column in (*columns, near.matches[at])], schema=_NEAR_COPIES
        ),
        own["shuffle_key"].to_numpy()[is_copy],
    )


class CopiesLeftOut:
    """The copies that a part of phase two leaves out.

    Attributes:
        documents, tokens: the documents left out so far, and their tokens with end-of-text ids.
    """

    def __init__(self, storage: Storage, copies: SpillIndex, part: int, spec: DatasetSpec) -> None:
        """Read the copies that the part must leave out.

        Args:
            storage: the storage that holds the spills.
            copies: the index of copies; empty if copies are not looked for.
            part: the number of the part, which is its block in each spill.
            spec: the specification of the dataset.

        Raises:
            StorageError: a spill cannot be read.
            CorruptDatasetError: a spill is damaged.
        """
        wanted = [Blocks(number, part, part + 1) for number in range(len(copies.paths))]
        found = [batch for batches in copies.read_all(storage, wanted) for batch in batches]
        schema = _COPIES if spec.near is None else _NEAR_COPIES
        columns = [column.to_numpy() for column in as_one(found, schema).columns]
        self._codes = codes(columns[0], columns[1])
        if spec.near is not None:
            columns[4] = spec.near.similarity_of(columns[4])
        order = np.argsort(self._codes)
        self._codes, self._firsts = self._codes[order], [column[order] for column in columns[2:]]
        self._spec, self._table = spec, duplicates_kind(near=spec.near is not None)
        self._found: list[Duplicates] = []
        self.documents = self.tokens = 0

    def stay(self, groups: Ints, rows: Ints, tokens: Ints) -> npt.NDArray[np.bool_]:
        """Flag the documents that stay, and list the others; all arrays: (documents,).

        Args:
            groups, rows: the names of the documents, in the order of the part.
            tokens: the tokens of each document, without the end-of-text id.
        """
        is_copy, at = look_up(self._codes, codes(groups, rows))
        firsts = [column[at] for column in self._firsts]
        own = groups[is_copy], rows[is_copy], tokens[is_copy]
        self._found.append(self._table(*own, *firsts))
        self.documents += int(is_copy.sum())
        self.tokens += int((tokens[is_copy] + 1).sum())
        stay: npt.NDArray[np.bool_] = ~is_copy
        return stay

    def finish(self, folder: Path, part: int) -> None:
        """Write the list of the copies that were left out, if copies are looked for.

        Raises:
            CorruptDatasetError: the part does not hold all copies that it must leave out.
        """
        if self.documents != len(self._codes):
            raise CorruptDatasetError(
                f"part {part:05}: {self.documents} documents of {len(self._codes)} that were to be "
                "left out exist: something changed the folder shuffle of the output. Remove "
                "that folder and run the same command again."
            )
        if self._spec.deduplicate is None:
            return
        file = folder / duplicates_path(part)
        file.parent.mkdir(parents=True, exist_ok=True)
        shuffled = self._spec.shuffle is not None
        file.write_bytes(self._table.joined(self._found).to_bytes(shuffled=shuffled))
