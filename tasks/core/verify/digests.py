"""Checking the hashes that a dataset without copies keeps of its texts, for what extends it."""

from typing import Final

import numpy as np

from streaming_ext.dataset.deduplicated.digests import (
    Digests,
    Keys,
    digests_limit,
    kept_digests_path,
    read_digests,
)
from streaming_ext.dataset.layout import DIGESTS_FOLDER, MANIFEST
from streaming_ext.dataset.manifest import KeptDigests, Manifest
from streaming_ext.dataset.shuffled.keys import KEY_BITS, document_keys
from streaming_ext.errors import CorruptDatasetError, StorageError
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.verify.findings import Outcome

_ALL: Final[int] = 2**KEY_BITS - 1


def verify_digests(manifest: Manifest, files: DatasetFiles, out: Outcome) -> None:
    """Check that they are as recorded, in their order, and as many as there are documents.

    Args:
        manifest: of a dataset without copies; older ones have no hashes.
        files: of the dataset.
        out: gets the findings.
    """
    before = documents = 0
    summaries = [*(each.splits for each in manifest.generations), manifest.splits]
    ends = [0, *(each.parts for each in manifest.generations)]
    for first, splits, kept in zip(ends, summaries, manifest.digests, strict=False):
        documents = sum(split.documents for split in splits.values())
        if kept.documents != documents - before:
            out.found(
                MANIFEST,
                f"{kept.documents} hashes of texts, of {documents - before} documents that the "
                f"generation from part {first} on added",
            )
        before = documents
        paths = [kept_digests_path(first, number) for number in range(len(kept.files))]
        if [file.path for file in kept.files] != paths:
            out.found(MANIFEST, f"the hashes of texts do not lie at {paths[0]} and behind")
        count = sum(_count(kept, number, manifest, files, out) for number in range(len(paths)))
        if count != kept.documents and not any(
            finding.file.startswith(DIGESTS_FOLDER) for finding in out.findings
        ):
            out.found(paths[0], f"{count} hashes here and behind, {kept.documents} are recorded")


def _count(
    kept: KeptDigests, number: int, manifest: Manifest, files: DatasetFiles, out: Outcome
) -> int:
    """How many a file holds, which are to be of its range and ascending."""
    file, total = kept.files[number], len(kept.files)
    low, high = (number << KEY_BITS) // total, ((number + 1) << KEY_BITS) // total - 1
    found, last = 0, (-1, -1)
    try:
        data = files.read(file, limit=digests_limit(kept.documents))
        for batch in read_digests(data, shuffled=manifest.shuffled is not None):
            if not len(batch.high):
                continue
            first = (int(batch.high[0]), int(batch.low[0]))
            same = batch.high[1:] == batch.high[:-1]
            rising = (batch.high[1:] > batch.high[:-1]) | same & (batch.low[1:] > batch.low[:-1])
            inside = low <= first[0] and int(batch.high[-1]) <= high
            if first <= last or not rising.all() or not inside:
                out.found(file.path, "hashes that are not in their order, or of another range")
                return found
            found += len(batch.high)
            last = (int(batch.high[-1]), int(batch.low[-1]))
    except (CorruptDatasetError, StorageError) as error:
        out.found(file.path, str(error))
        return found
    out.count(files=1, bytes=file.size)
    return found


def fingerprint(digests: Digests) -> int:
    """A number of 64 bits for a set of them, whatever their order: sums of sets are that of all."""
    of_hash = document_keys(0, _signed(digests.high), _signed(digests.low))
    whole = document_keys(1, _signed(of_hash), (digests.groups << 40) | digests.rows)
    return int(np.sum(whole, dtype=np.uint64))


def fingerprint_of_kept(manifest: Manifest, files: DatasetFiles) -> int:
    """That of all hashes that a dataset keeps.

    Raises:
        CorruptDatasetError: they are damaged.
        StorageError: they cannot be read.
    """
    whole = 0
    for kept in manifest.digests:
        for file in kept.files:
            data = files.read(file, limit=digests_limit(kept.documents))
            for batch in read_digests(data, shuffled=manifest.shuffled is not None):
                whole += fingerprint(batch)
    return whole & _ALL


def _signed(values: Keys) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return values.view(np.int64)
