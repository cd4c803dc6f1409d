"""Checking the lists of copies: against the records, the lists of documents, and each other."""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from streaming_ext.dataset.deduplicated.duplicates import (
    Duplicates,
    duplicates_limit,
    read_duplicates,
)
from streaming_ext.dataset.layout import record_path
from streaming_ext.dataset.provenance import documents_limit, read_provenance
from streaming_ext.dataset.record import PartRecord
from streaming_ext.errors import CorruptDatasetError, StorageError
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.verify.findings import Outcome
from tasks.core.verify.order import ShuffledSources

Ints = npt.NDArray[np.int64]
_MOST_AT_ONCE = 2**23  # copies that are looked for in the lists of documents
_ROW_BITS = 40


def duplicates_of(record: PartRecord, files: DatasetFiles) -> Iterator[Duplicates]:
    """What a part left out as copies.

    Raises:
        CorruptDatasetError: the list is damaged.
        StorageError: it cannot be read.
    """
    if record.duplicates is None:
        return
    data = files.read(record.duplicates, limit=duplicates_limit(record.duplicate_documents))
    yield from read_duplicates(data, shuffled=record.spec.shuffle is not None)


def codes(groups: Ints, rows: Ints) -> Ints:
    """A number for each pair of a part, or a source, and a row of it."""
    return (groups << _ROW_BITS) | rows


def told(code: int, what: str) -> str:
    """Such a pair for people."""
    return f"row {code & (2**_ROW_BITS - 1)} of {what} {code >> _ROW_BITS}"


def verify_duplicates(
    records: Mapping[int, PartRecord],
    files: DatasetFiles,
    sources: ShuffledSources | None,
    out: Outcome,
) -> None:
    """Check that each list is as recorded, that what it names as first copies stayed, and that
    what was left out is not there.

    Args:
        records: of all parts.
        files: of the dataset.
        sources: of a shuffled one.
        out: gets the findings.
    """
    sound = [record for record in records.values() if _verify_list(record, files, sources, out)]
    if len(sound) < len(records):
        return
    total = sum(record.duplicate_documents for record in sound)
    groups = len(records) if sources is None else len(sources.sources)
    passes = max(1, -(-total // _MOST_AT_ONCE))
    for number in range(passes if total else 0):
        window = groups * number // passes, groups * (number + 1) // passes
        _compare_with_documents(sound, files, window, out)


def _verify_list(
    record: PartRecord, files: DatasetFiles, sources: ShuffledSources | None, out: Outcome
) -> bool:
    """Check one list by itself; returns whether it can be read."""
    if record.duplicates is None:
        return True
    path = record.duplicates.path
    documents = tokens = 0
    last = -1
    try:
        for found in duplicates_of(record, files):
            documents += len(found.rows)
            tokens += int((found.tokens + 1).sum())
            own, first = (
                codes(found.groups, found.rows),
                codes(found.first_groups, found.first_rows),
            )
            if (first >= own).any():
                out.found(path, "names a first copy that does not stand before its copy")
            if sources is None:
                inside = (found.groups == record.part) & (found.rows < record.rows)
                ordered = bool((np.diff(own, prepend=last) > 0).all())
                last = int(own[-1]) if len(own) else last
            else:
                inside = (found.groups >= 0) & (found.groups < len(sources.rows))
                inside[inside] = found.rows[inside] < sources.rows[found.groups[inside]]
                ordered = True
                sources.count_left_out(found.groups[inside])
            if not inside.all() or not ordered or (found.rows < 0).any():
                out.found(path, "names rows that are not there, or not in their order")
                return False
    except (CorruptDatasetError, StorageError) as error:
        out.found(path, str(error))
        return False
    out.count(files=1, bytes=record.duplicates.size, duplicates=documents)
    counted = (record.duplicate_documents, record.duplicate_tokens)
    if (documents, tokens) != counted:
        out.found(
            record_path(record.part),
            f"{counted[0]} duplicates of {counted[1]} tokens, {path} lists {documents} of {tokens}",
        )
    return True


def _compare_with_documents(
    records: list[PartRecord], files: DatasetFiles, window: tuple[int, int], out: Outcome
) -> None:
    """Look for copies and first copies of some parts, or sources, in the lists of documents."""
    own: list[Ints] = []
    first: list[Ints] = []
    paths = {}
    for record in records:
        for found in duplicates_of(record, files):
            for wanted, groups, rows in (
                (own, found.groups, found.rows),
                (first, found.first_groups, found.first_rows),
            ):
                inside = (groups >= window[0]) & (groups < window[1])
                wanted.append(codes(groups[inside], rows[inside]))
                if wanted is first and inside.any():
                    paths[record.part] = record.lists[-1].path
    left_out, firsts = (
        np.unique(np.concatenate([np.empty(0, np.int64), *w])) for w in (own, first)
    )
    stayed = np.zeros(len(firsts), np.bool_)
    shuffled = any(record.spec.shuffle is not None for record in records)
    what = "source" if shuffled else "part"
    for record in records:
        if not shuffled and not window[0] <= record.part < window[1]:
            continue
        try:
            data = files.read(
                record.documents, limit=documents_limit(record.rows, len(record.spec.keep_columns))
            )
            for batch in read_provenance(data):
                groups = np.full(len(batch.rows), record.part)
                there = codes(groups if batch.sources is None else batch.sources, batch.rows)
                stayed |= np.isin(firsts, there)
                if (both := np.intersect1d(left_out, there)).size:
                    out.found(
                        record.documents.path,
                        f"lists {told(int(both[0]), what)}, which was left out as a copy",
                    )
        except (CorruptDatasetError, StorageError):
            return  # found by the check of the part
    if not stayed.all() and paths:
        gone = told(int(firsts[~stayed][0]), what)
        out.found(
            next(iter(paths.values())),
            f"this or another list names {gone} as a first copy, which is no document",
        )
