"""The checks of copies: lists of documents that were left out, and hashes of others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.arrays import Flags, Ints, look_up
from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.format.duplicates import ROW_BITS, Digests, KeptSketches, NearDuplicates, codes
from streaming_ext.format.layout import DIGESTS_FOLDER, DUPLICATES_FOLDER, MANIFEST
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord
from streaming_ext.format.shuffled import KEY_BITS, document_keys, key_range
from streaming_ext.format.spec import NearRule
from streaming_ext.text.sketches import sketch_keys
from streaming_ext.text.text_hashes import first_ones
from tasks.core.check.findings import Outcome
from tasks.core.check.manifest import Opened
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.reading.documents import (
    PartOfDataset,
    document_codes,
    duplicates_of,
    listed_documents,
)
from tasks.core.shuffle.near import sketched_documents


@dataclass(frozen=True, kw_only=True, slots=True)
class Copies:
    """The copies that a part left out.

    Attributes:
        of_sources: the number of documents and copies that the part lists from each source, if the
            dataset is shuffled.
        firsts: the `codes` of the first copies, each once.
        documents: a checksum of the set of documents of the part; see `summed`.
    """

    of_sources: Ints
    firsts: Ints
    documents: int


@dataclass(frozen=True, slots=True)
class KeptHashes:
    """The kept hashes or sketches of the texts of some documents.

    Attributes:
        codes: the codes of the documents, ascending, each once: (documents,).
        hashes: the hashes of their texts, (documents, 2), or their sketches, (documents, bins).
    """

    codes: Ints
    hashes: npt.NDArray[Any]

    @classmethod
    def read(cls, manifest: Manifest, files: DatasetFiles, wanted: Ints) -> Self:
        """Read the hashes of the wanted documents, which are sound; `wanted` are `codes`.

        A subset keeps no sketches, so they are made again from its ids.
        """
        known: list[tuple[Ints, npt.NDArray[Any]]] = []
        if manifest.spec.subset is not None and (rule := manifest.spec.listed_near) is not None:
            for number in range(len(manifest.parts)):
                part = PartOfDataset(files.storage, manifest, number)
                listed = listed_documents(part.files, part.record)
                own = document_codes(listed)
                chosen = np.isin(own, wanted)
                known += [
                    (own[at], sketches)
                    for at, sketches in sketched_documents(part, listed, chosen, rule)
                ]
        for kept in manifest.digests:
            for file in kept.files:
                found = _digests(manifest, files, file, kept.documents)
                own = codes(found.groups, found.rows)
                chosen = np.isin(own, wanted)
                if isinstance(found, KeptSketches):
                    hashes = found.sketches
                else:
                    hashes = np.stack([found.high, found.low], axis=1)
                known.append((own[chosen], hashes[chosen]))
        own, hashes = map(np.concatenate, zip(*known, strict=True))
        order = np.argsort(own)
        return cls(own[order], hashes[order])

    def look_up(self, wanted: Ints) -> npt.NDArray[Any]:
        """Return the hashes or sketches of some of the documents: (wanted, 2 or bins)."""
        found: npt.NDArray[Any] = self.hashes[np.searchsorted(self.codes, wanted)]
        return found


def shown(code: int) -> str:
    """Return the document with this code, in words."""
    return f"row {code & (2**ROW_BITS - 1)} of part or source {code >> ROW_BITS}"


def summed(documents: Ints) -> int:
    """Return a checksum of a set of documents; checksums of disjoint sets add up, mod 2^64."""
    return int(document_keys(0, documents, documents).sum(dtype=np.uint64))


def exist(groups: Ints, rows: Ints, most: Sequence[int]) -> Flags:
    """Flag the rows that exist, (rows,); `most` are the numbers of rows of the parts or sources."""
    known = (groups >= 0) & (groups < len(most)) & (rows >= 0)
    found: Flags = known & (rows < np.array(most, np.int64)[np.where(known, groups, 0)])
    return found


def _digests(
    manifest: Manifest, files: DatasetFiles, file: FileRecord, most: int
) -> Digests | KeptSketches:
    """Read the hashes or sketches in a file, at most `most`.

    Raises:
        CorruptDatasetError: the file is damaged.
    """
    near = manifest.spec.near
    kind: Any = Digests if near is None else KeptSketches
    data = files.read(file, limit=kind.limit(most))
    batches = kind.read(data, shuffled=manifest.shuffled is not None)
    found: Digests | KeptSketches = kind.joined(batches)
    if near is None or isinstance(found, Digests):
        return found
    if len(found.rows) and found.sketches.shape[1] != near.bins:
        raise CorruptDatasetError(f"holds sketches that are not of {near.bins} bytes")
    return replace(found, sketches=found.sketches.reshape(-1, near.bins))


def _is_in_order(kept: Digests | KeptSketches, near: NearRule | None, number: int, of: int) -> bool:
    """Return whether file `number` of `of` holds documents of its range only, in order."""
    if isinstance(kept, Digests):
        start, end = key_range(number, of)
        keys, orders = kept.high, first_ones(kept.high, kept.low)
    else:
        assert near is not None  # noqa: S101  (only near copies have sketches)
        start, end = key_range(number, of * (1 + near.bands))
        keys = sketch_keys(kept.sketches, near)[0]
        orders = np.lexsort((codes(kept.groups, kept.rows), keys)), np.arange(len(keys))
    in_range = (keys >= np.uint64(start)) & (keys <= np.uint64(end - 1))
    is_rising = all(np.array_equal(each, np.arange(len(keys))) for each in orders)
    return is_rising and bool(in_range.all())


def check_copies(
    record: PartRecord, listed: pa.Table, dataset: Opened, out: Outcome
) -> Copies | None:
    """Check the list of copies of a part against its record and its documents.

    Args:
        record: the record of the part.
        listed: the documents of the part.
        dataset: the dataset of the part.
        out: gets the findings.

    Returns:
        The copies; None if the list cannot be read.
    """
    path = record.lists[-1].path
    documents = document_codes(listed)
    with out.about(path):
        found = duplicates_of(dataset.files, record)
        counts = len(found.rows), int((found.tokens + 1).sum())
        if record.duplicates is not None:
            out.count(files=1, bytes=record.duplicates.size, duplicates=counts[0])
        own = codes(found.groups, found.rows)
        first = codes(found.first_groups, found.first_rows)
        of_sources = np.empty(0, np.int64)
        if dataset.sources:
            valid = exist(found.groups, found.rows, [source.rows for source in dataset.sources])
            groups = np.concatenate([listed["source"], found.groups[valid]])
            of_sources = np.bincount(groups, minlength=len(dataset.sources))
        else:
            valid = exist(found.groups - record.part, found.rows, [record.rows])
        is_once = len(np.union1d(own, documents)) == len(own) + len(documents)
        is_counted = counts == (record.duplicate_documents, record.duplicate_tokens)
        near = record.spec.listed_near
        if near is not None and isinstance(found, NearDuplicates):
            possible = near.similarity_of(np.arange(near.least_matches, near.bins + 1))
            if len(wrong := np.flatnonzero(~np.isin(found.similarities, possible))):
                words = f"{found.similarities[wrong[0]]:.3f} to its witness"
                raise CorruptDatasetError(
                    f"row {found.rows[wrong[0]]} has the similarity {words}: near copies have "
                    f"{possible[0]:.3f} to 1, in steps of a bin"
                )
        if not (is_counted and valid.all() and is_once and (first < own).all()):
            raise CorruptDatasetError(
                "lists other copies than are recorded, or a row that does not exist, twice, that "
                "is a document of the part, or before its first copy"
            )
        return Copies(
            of_sources=of_sources,
            firsts=np.unique(first),
            documents=summed(documents),
        )
    return None


def check_witnesses(
    records: Iterable[PartRecord], files: DatasetFiles, parts: Sequence[Copies], out: Outcome
) -> None:
    """Check that the first copies, or witnesses, are among the documents.

    Args:
        records: the records of the parts.
        files: the files of the dataset.
        parts: the copies that each part left out.
        out: gets the findings.
    """
    firsts = np.unique(np.concatenate([part.firsts for part in parts]))
    named = [firsts[:0]]
    for record in records:
        listed = listed_documents(files, record)
        own = document_codes(listed)
        named.append(own[look_up(firsts, own)[0]])
    if len(lost := np.setdiff1d(firsts, np.concatenate(named))):
        words = f"a list names {shown(int(lost[0]))} as a first copy, which is no document"
        out.found(DUPLICATES_FOLDER, words)


def check_digests(
    manifest: Manifest,
    files: DatasetFiles,
    parts: Sequence[Copies],
    out: Outcome,
) -> None:
    """Check that the kept hashes of texts are those of exactly the documents.

    Args:
        manifest: the manifest of the dataset.
        files: the files of the dataset.
        parts: the copies that each part left out.
        out: gets the findings.
    """
    documents = 0
    for generation, kept in enumerate(manifest.digests):
        count = 0
        for number, file in enumerate(kept.files):
            with out.about(file.path):
                found = _digests(manifest, files, file, kept.documents)
                own = codes(found.groups, found.rows)
                documents += summed(own)
                count += len(own)
                if not _is_in_order(found, manifest.spec.near, number, len(kept.files)):
                    out.found(file.path, "hashes that are not in order, or of another range")
        if out.is_sound(DIGESTS_FOLDER) and count != kept.documents:
            words = f"digests[{generation}].documents is {kept.documents}, made again {count}"
            out.found(MANIFEST, words)
    is_same = (documents - sum(part.documents for part in parts)) % 2**KEY_BITS == 0
    if out.is_sound(DIGESTS_FOLDER) and not is_same:
        out.found(DIGESTS_FOLDER, "the hashes are of other documents than the parts list")
