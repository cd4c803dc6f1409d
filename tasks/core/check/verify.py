"""Checking a published dataset against everything that it promises, and against its sources.

One walk: manifest, records and what belongs to no part; then each part, its lists and shards;
then, with `--deep`, sources, from which documents are made again.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from streaming_ext.base.errors import NotADatasetError
from streaming_ext.base.extras import require
from streaming_ext.format.layout import (
    DIGESTS_FOLDER,
    DOCUMENTS_FOLDER,
    DUPLICATES_FOLDER,
    SPLITS,
)
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.record import PartRecord
from streaming_ext.store import Storage
from tasks.core.check.copies import check_digests, check_witnesses
from tasks.core.check.deep import DEFAULT_DOCUMENTS, compare_with_sources, draw
from tasks.core.check.findings import DatasetReport, Outcome, Progress
from tasks.core.check.manifest import Opened, open_checked
from tasks.core.check.part import PartFound, check_part
from tasks.core.reading.dataset_files import DatasetFiles


def verify(
    storage: Storage,
    *,
    generation: str | None = None,
    deep: bool = False,
    deep_documents: int = DEFAULT_DOCUMENTS,
    seed: int = 0,
    workers: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> DatasetReport:
    """Check every byte of a dataset; damage becomes a finding and never ends the check.

    Args:
        storage: the storage of the dataset.
        generation: the start of the hash of a generation's manifest, of an extended dataset; None
            for the newest.
        deep: also make some parts again from their source files by the reference (of a shuffled
            dataset, some of its source files), and compare.
        deep_documents: number of documents that these have, at least.
        seed: the seed of the choice of these.
        workers: number of threads; each holds one shard at a time.
        on_progress: called with the bytes that are done and all bytes, from any thread.

    Raises:
        NotADatasetError: there is no published dataset at this place.
    """
    if deep:
        require("tiktoken")
    began = time.monotonic()
    files = DatasetFiles(storage, storage.list(), generation=generation)
    out, progress = Outcome(), Progress(on_progress)
    dataset = open_checked(files, out)
    records, manifest = dataset.records, dataset.manifest
    if manifest is None and not records:
        raise NotADatasetError(f"{storage}: {out.findings[0]}, and there is no record of a part.")

    def check(record: PartRecord) -> PartFound:
        return check_part(record, dataset, progress.done)

    progress.expect(sum(file.size for record in records.values() for file in record.files()))
    with ThreadPoolExecutor(workers) as threads, progress:
        parts = [*threads.map(check, records.values())]
    for found in parts:
        out.take(found.out)
    folders = DOCUMENTS_FOLDER, DUPLICATES_FOLDER, DIGESTS_FOLDER
    if manifest is not None and parts and dataset.is_complete and out.is_sound(*folders):
        _check_sums(dataset, manifest, parts, out)
        if deep and out.is_sound(*folders, *SPLITS):  # what is damaged cannot be compared
            drawn = draw(dataset, deep_documents, seed)
            compare_with_sources(
                drawn, dataset, manifest, out=out, progress=progress, workers=workers
            )
    return DatasetReport(
        dataset=str(storage),
        parts=len(records if manifest is None else manifest.parts),
        findings=out.sorted(),
        checked=out.checked,
        deep=deep,
        requested=deep_documents if deep else 0,
        imported=manifest is not None and manifest.spec.imported is not None,
        seconds=time.monotonic() - began,
    )


def _check_sums(
    dataset: Opened, manifest: Manifest, parts: Sequence[PartFound], out: Outcome
) -> None:
    """Check what the lists of all parts say together; all of them are sound.

    Args:
        dataset: the dataset that is checked.
        manifest: the manifest of the dataset.
        parts: the results of all parts.
        out: gets the findings.
    """
    copies = [found.copies for found in parts if found.copies is not None]
    if manifest.shuffled is not None:
        counts = np.sum([each.of_sources for each in copies], axis=0)
        expected = [source.documents for source in dataset.sources]
        wrong = counts > expected if manifest.spec.subset else counts != expected
        for number in np.flatnonzero(wrong):
            source = dataset.sources[number]
            words = f"{source.documents} documents of {source.identity.url}, the parts list "
            out.found(manifest.shuffled.sources.path, f"{words}{counts[number]}", kind="documents")
    if manifest.digests:
        check_digests(manifest, dataset.files, copies, out)
    elif manifest.spec.lists_copies:
        check_witnesses(dataset.records.values(), dataset.files, copies, out)
