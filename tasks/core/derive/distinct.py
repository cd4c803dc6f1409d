"""The search for near copies among the documents of a published dataset, by their ids.

The process that plans a subset searches: it reads each part, compares the sketches, and notes the
positions of copies and witnesses in the lists of documents.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Flags, Ints, look_up
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.duplicates import KeptSketches
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.record import PartRecord
from streaming_ext.format.spec import NearRule
from streaming_ext.store import LocalStorage, Storage
from streaming_ext.store.scratch import new_folder
from tasks.core.reading.documents import PartOfDataset, document_codes, listed_documents
from tasks.core.shuffle.near import NearCopies, sketched_documents, sorted_sketches

Candidates = Callable[[PartRecord], Flags]  # returns flags of a part's documents, (documents,)
_THREADS = 4  # to sketch parts; each holds the sketches of one part


def unpacked(bits: npt.NDArray[np.uint8], documents: int) -> Flags:
    """Unpack the flags of documents from a bit per document: (documents,)."""
    flags: Flags = np.unpackbits(bits, count=documents) == 1
    return flags


@dataclass(frozen=True, slots=True)
class _PartCopies:
    """The near copies and the witnesses that a part holds.

    Attributes:
        distinct: a bit per document, set if it is a candidate and not a near copy.
        copies: the positions of copies in the list of documents, and their numbers in `NearCopies`.
        witnesses: the positions of witnesses in the list, and their numbers among all witnesses.
    """

    distinct: npt.NDArray[np.uint8]
    copies: tuple[Ints, Ints]
    witnesses: tuple[Ints, Ints]


@dataclass(frozen=True, slots=True)
class DistinctDocuments:
    """The candidates that are not near copies of earlier ones.

    Attributes:
        near: all near copies among the candidates.
        witnesses: the `codes` of all witnesses, each once, ascending.
        parts: the copies and witnesses of each part.
    """

    near: NearCopies
    witnesses: Ints
    parts: Sequence[_PartCopies]

    @classmethod
    def of(
        cls, dataset: Storage, manifest: Manifest, rule: NearRule, candidates: Candidates
    ) -> Self:
        """Sketch and compare the candidates; memory grows with the number of similar ones.

        Raises:
            CorruptDatasetError: the dataset is damaged.
            StorageError: it cannot be read.
        """

        def sketch(number: int) -> KeptSketches:
            part = PartOfDataset(dataset, manifest, number)
            listed = listed_documents(part.files, part.record)
            found = sketched_documents(part, listed, candidates(part.record), rule)
            at, sketches = map(np.concatenate, zip(*found, strict=True))
            groups, rows = (listed[name].to_numpy()[at] for name in ("source", "row"))
            return KeptSketches(groups, rows, sketches)

        numbers = range(len(manifest.parts))
        with new_folder() as folder:
            sketched = mapped_ahead(sketch, numbers, threads=_THREADS)
            index = sorted_sketches(folder, sketched, rule)
            near = NearCopies.found(LocalStorage(folder), index, iter(()), rule)
        witnesses = np.unique(near.witnesses)

        def look(number: int) -> _PartCopies:
            part = PartOfDataset(dataset, manifest, number)
            listed = listed_documents(part.files, part.record)
            own = document_codes(listed)
            is_copy, copies = look_up(near.documents, own)
            is_witness, held = look_up(witnesses, own)
            return _PartCopies(
                distinct=np.packbits(candidates(part.record) & ~is_copy),
                copies=(np.flatnonzero(is_copy), copies),
                witnesses=(np.flatnonzero(is_witness), held),
            )

        return cls(near, witnesses, [*mapped_ahead(look, numbers)])

    def flags(self, record: PartRecord) -> Flags:
        """Flag the distinct documents of a part: (documents,)."""
        return unpacked(self.parts[record.part].distinct, record.documents_kept)

    def left_out(self, records: Sequence[PartRecord], taken: Candidates) -> list[Ints]:
        """Return the copies in each part whose witnesses are taken: (3, copies) each.

        The rows are the copies' positions in the list of documents, the `codes` of their witnesses,
        and the numbers of bins in which both agree.

        Args:
            records: the records of all parts.
            taken: a function that flags the documents of a part that are taken.
        """
        is_taken = np.zeros(len(self.witnesses), np.bool_)
        for record, own in zip(records, self.parts, strict=True):
            positions, numbers = own.witnesses
            is_taken[numbers] = taken(record)[positions]
        stays = is_taken[np.searchsorted(self.witnesses, self.near.witnesses)]
        found = []
        for positions, numbers in (own.copies for own in self.parts):
            chosen = numbers[stays[numbers]]
            columns = self.near.witnesses[chosen], self.near.matches[chosen]
            found.append(np.stack([positions[stays[numbers]], *columns]))
        return found
