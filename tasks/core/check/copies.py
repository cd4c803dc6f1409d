"""What was left out as copies: the lists of it, and the hashes of what stayed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from streaming_ext.base.arrays import Ints
from streaming_ext.format.duplicates import (
    Digests,
    digests_limit,
    kept_digests_path,
)
from streaming_ext.format.layout import DIGESTS_FOLDER, DUPLICATES_FOLDER, record_path
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.record import PartRecord
from streaming_ext.format.shuffled import KEY_BITS, Keys, document_keys, key_range
from tasks.core.check.findings import Outcome
from tasks.core.check.manifest import Opened
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.reading.documents import duplicates_of

_ROW_BITS: Final = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Copies:
    """What a part left out.

    Attributes:
        groups: the part of each copy, or its source if the dataset is shuffled: (copies,).
        firsts: the first copies, as `codes`, each once.
        documents: one number for all documents of the part, whatever their order; see `summed`.
        listed: those of wanted sources, with the `first` copy of each, as `codes`.
    """

    groups: Ints
    firsts: Ints
    documents: int
    listed: pa.Table


@dataclass(frozen=True, slots=True)
class HashesOf:
    """Hashes that are kept of some documents.

    Attributes:
        codes: of the documents, ascending, each once: (documents,).
        hashes: of their texts: (documents, 2).
    """

    codes: Ints
    hashes: Keys

    def of(self, wanted: Ints) -> Keys:
        """The hashes of some of them: (wanted, 2)."""
        return self.hashes[np.searchsorted(self.codes, wanted)]


def codes(groups: Ints, rows: Ints) -> Ints:
    """A number for each pair of a part, or a source, and a row of it."""
    return (groups << _ROW_BITS) | rows


def shown(code: int) -> str:
    """Such a pair for people."""
    return f"row {code & (2**_ROW_BITS - 1)} of part or source {code >> _ROW_BITS}"


def summed(groups: Ints, rows: Ints) -> int:
    """A number of 64 bits for a set of documents: those of disjoint sets add up to that of all."""
    return int(document_keys(0, groups, rows).sum(dtype=np.uint64))


def check_copies(
    record: PartRecord, listed: pa.Table, wanted: Ints, dataset: Opened, out: Outcome
) -> Copies:
    """Check the list of copies of a part against its record and its documents.

    Args:
        record: of the part.
        listed: its documents.
        wanted: sources, or the part, of which the copies are returned.
        dataset: that it is of.
        out: gets the findings.
    """
    path, shuffled = record.lists[-1].path, record.spec.shuffle is not None
    groups, rows = listed["source"].to_numpy(), listed["row"].to_numpy()
    with out.about(path):
        found = duplicates_of(dataset.files, record)
        counts = len(found.rows), int((found.tokens + 1).sum())
        if record.duplicates is not None:
            out.count(files=1, bytes=record.duplicates.size, duplicates=counts[0])
        if counts != (record.duplicate_documents, record.duplicate_tokens):
            words = f"{record.duplicate_documents} duplicates of {record.duplicate_tokens} tokens"
            words = f"{words}, {path} lists {counts[0]} of {counts[1]}"
            out.found(record_path(record.part), words)
        own = codes(found.groups, found.rows)
        first = codes(found.first_groups, found.first_rows)
        if (first >= own).any():
            out.found(path, "names a first copy that does not come before its copy")
        most = np.array([source.rows for source in dataset.sources] or [record.rows], np.int64)
        numbers = found.groups if shuffled else found.groups - record.part
        inside = (found.rows >= 0) & (numbers >= 0) & (numbers < len(most))
        inside[inside] = found.rows[inside] < most[numbers[inside]]
        if not inside.all() or len(np.unique(own)) < len(own):
            out.found(path, "names rows that are not there, or one twice")
        for both in np.intersect1d(own, codes(groups, rows))[:1]:
            out.found(record.documents.path, f"lists {shown(both)}, which was left out as a copy")
        chosen = np.isin(found.groups, wanted)
        return Copies(
            groups=found.groups[inside],
            firsts=np.unique(first),
            documents=summed(groups, rows),
            listed=pa.table(
                [column[chosen] for column in (found.groups, found.rows, found.tokens, first)],
                names=["source", "row", "tokens", "first"],
            ),
        )
    none = np.empty(0, np.int64)
    return Copies(groups=none, firsts=none, documents=0, listed=pa.table({"first": none}))


def check_digests(
    manifest: Manifest,
    files: DatasetFiles,
    parts: Sequence[Copies],
    also: Ints,
    out: Outcome,
) -> HashesOf | None:
    """Check the hashes of the texts that stayed: of just the documents, first copies among them.

    Args:
        manifest: of the dataset.
        files: of it.
        parts: what each of them left out.
        also: documents whose hashes are asked for beside those of first copies, as `codes`.
        out: gets the findings.

    Returns:
        The hashes; None where something is wrong.
    """
    firsts = np.unique(np.concatenate([part.firsts for part in parts]))
    wanted = np.union1d(firsts, also)
    stayed, hashes = np.zeros(len(wanted), np.bool_), np.zeros((len(wanted), 2), np.uint64)
    documents = 0
    begins = [0, *(each.parts for each in manifest.generations)]
    for begin, kept in zip(begins, manifest.digests, strict=True):
        count = 0
        for number, file in enumerate(kept.files):
            path = kept_digests_path(begin, number)
            with out.about(path):
                data = files.read(file, limit=digests_limit(kept.documents))
                shuffled = manifest.shuffled is not None
                found = Digests.joined([*Digests.read(data, shuffled=shuffled)])
                own = codes(found.groups, found.rows)
                known = np.isin(own, wanted)
                positions = np.searchsorted(wanted, own[known])
                stayed[positions] = True
                hashes[positions] = np.stack([found.high, found.low], axis=1)[known]
                documents += summed(found.groups, found.rows)
                count += len(own)
                low, high = key_range(number, len(kept.files))
                in_range = (found.high >= np.uint64(low)) & (found.high <= np.uint64(high - 1))
                rising = (found.high[1:] > found.high[:-1]) | (
                    (found.high[1:] == found.high[:-1]) & (found.low[1:] > found.low[:-1])
                )
                if file.path != path or not (rising.all() and in_range.all()):
                    out.found(path, "hashes that are not in order, or of another range")
        if count != kept.documents and out.is_sound(DIGESTS_FOLDER):
            words = f"{count} hashes of texts, {kept.documents} in the manifest"
            out.found(DIGESTS_FOLDER, words)
    if (documents - sum(part.documents for part in parts)) & (2**KEY_BITS - 1):
        if out.is_sound(DIGESTS_FOLDER):
            out.found(DIGESTS_FOLDER, "the hashes are of other documents than the parts list")
    elif len(gone := np.setdiff1d(firsts, wanted[stayed])):
        words = f"a list names {shown(int(gone[0]))} as a first copy, which is no document"
        out.found(DUPLICATES_FOLDER, words)
    sound = out.is_sound(DIGESTS_FOLDER, DUPLICATES_FOLDER)
    return HashesOf(wanted, hashes) if sound else None
