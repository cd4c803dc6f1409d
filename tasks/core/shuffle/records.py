"""The files that the first phase leaves for the second: records of spills, and an index.

Below `shuffle/` of the output, until the dataset is published:

    00007.json           the record of part 7; with it, phase one of the part is done
    00007-002.spill      its third spill: documents sorted by key; without a shuffle its only one,
                         in the order of the source
    00007-000.digests    where copies are looked for: sorted hashes of its documents
    copies-00000.spill   what phase two leaves out as copies, of one range of hashes
    index.npz            of the spills, made when phase one of all parts is done
"""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Self

import numpy as np

from streaming_ext.format.layout import SHUFFLE_FOLDER
from streaming_ext.format.manifest import KeptDigests, ShuffleSummary
from streaming_ext.format.record import PartCounts, PartRecord, SourceIdentity
from streaming_ext.format.schema import Count, FileRecord, Sealed, from_json
from streaming_ext.store import Storage
from streaming_ext.text.parts import Part
from tasks.core.reading.dataset_files import read_recorded, records_in
from tasks.core.shuffle.spills import Spill, SpillIndex

INDEX_PATH = f"{SHUFFLE_FOLDER}/index.npz"


def spill_record_path(part: int) -> str:
    """The path of the record of a part's spills."""
    return f"{SHUFFLE_FOLDER}/{part:05}.json"


class SpillRecord(PartCounts, Sealed):
    """The record of a part of phase one: counts and spills.

    Attributes:
        splits: the counts alone; nothing is packed yet.
        documents: the number of documents of each span.
        whole_version: the version of all of the first file, if the part holds the first span of it.
        spills: the spills of documents, in the order of the sources.
        digests: spills of their hashes, if copies are looked for.
    """

    documents: tuple[Count, ...]
    whole_version: str | None = None
    spills: tuple[Spill, ...]
    digests: tuple[Spill, ...] = ()

    def files(self) -> list[FileRecord]:
        """Every file of this part but the record itself."""
        return [spill.file for spill in self.spills] + self.lists

    @property
    def lists(self) -> list[FileRecord]:
        """Those that hold no documents, but hashes."""
        return [spill.file for spill in self.digests]


def shard_bytes(record: PartRecord | SpillRecord) -> int:
    """Size of the files that hold the tokens of a part."""
    return sum(file.size for file in record.files()) - sum(file.size for file in record.lists)


def read_spill_record(storage: Storage, part: int) -> SpillRecord:
    """The record of the spills of a part.

    Raises:
        FileNotFoundError: there is none.
        CorruptDatasetError: it is damaged.
    """
    path = spill_record_path(part)
    return from_json(SpillRecord, storage.read(path), where=f"{storage}/{path}")


def read_spill_records(
    storage: Storage, parts: Iterable[int] | None = None
) -> dict[int, SpillRecord]:
    """The records of spills on the output; see `records_in`."""
    return records_in(storage, SHUFFLE_FOLDER, partial(from_json, SpillRecord), parts)


def source_numbers(parts: Sequence[Part]) -> list[list[int]]:
    """The number of the source of each span, a list a part; a file that was cut is one source.

    a.parquet [0-5] [5-9], b.parquet, c.parquet    are the sources 0, 0, 1, 2
    """
    found: list[list[int]] = []
    number, last = -1, ("", -1)
    for part in parts:
        numbers = []
        for source_span in part.spans:
            begin, end = source_span.span or (0, source_span.source.size)
            number += not (begin and last == (source_span.source.url, begin))
            last = (source_span.source.url, end)
            numbers.append(number)
        found.append(numbers)
    return found


def first_sources(
    parts: Sequence[Part], first_part: int = 0, first_source: int = 0
) -> tuple[int, ...]:
    """The number of the source of each part's first span.

    Args:
        parts: all parts.
        first_part: the first one that is made of sources; earlier ones are on the output already.
        first_source: number of its first source.
    """
    found = source_numbers(parts[first_part:])
    return (0,) * first_part + tuple(first_source + numbers[0] for numbers in found)


@dataclass(frozen=True, slots=True)
class MergeInput:
    """The input of all parts of phase two.

    Attributes:
        summary: the summary of the sources, for the manifest; None without a shuffle.
        index: the index of the spills; None where only publishing is left.
        digests: hashes of what stays, if copies are left out.
    """

    summary: ShuffleSummary | None = None
    index: FileRecord | None = None
    digests: KeptDigests | None = None

    @property
    def source(self) -> SourceIdentity | None:
        """The source in the record of a part, with a shuffle: all sources."""
        return None if self.summary is None else identity_of_table(self.summary.sources)

    @property
    def files(self) -> list[FileRecord]:
        """The files of it beside the parts of the dataset: the table of sources, and hashes."""
        digests = self.digests.files if self.digests else ()
        return [*digests, *([self.summary.sources] if self.summary else [])]


def identity_of_table(table: FileRecord) -> SourceIdentity:
    """The table of sources as the source of a part."""
    return SourceIdentity(url=table.path, size=table.size, version=f"xxh128:{table.xxh128}")


@dataclass(frozen=True, slots=True)
class MergeIndex:
    """The index that each part of phase two reads: documents by key, and copies to leave out.

    Attributes:
        documents: spills of a shuffle; none without one.
        copies: spills of copies, of a block for each part of phase two.
    """

    documents: SpillIndex
    copies: SpillIndex

    def put(self, storage: Storage) -> FileRecord:
        """Write it for all workers."""
        file = io.BytesIO()
        indexes = {"documents": self.documents, "copies": self.copies}
        np.savez(
            file,
            **{
                f"{kind}.{name}": array
                for kind, index in indexes.items()
                for name, array in vars(index).items()
            },
        )
        storage.put(INDEX_PATH, file.getvalue())
        return FileRecord.of(INDEX_PATH, file.getvalue())

    @classmethod
    def read(cls, storage: Storage, file: FileRecord) -> Self:
        """Read the index that `put` wrote.

        Raises:
            CorruptDatasetError: the file is another one.
        """
        with np.load(io.BytesIO(read_recorded(storage, file)), allow_pickle=False) as arrays:
            indexes = [
                {each.name: arrays[f"{kind}.{each.name}"] for each in fields(SpillIndex)}
                for kind in ("documents", "copies")
            ]
        return cls(*(SpillIndex(**index) for index in indexes))
