"""Checking a published dataset against everything that it promises, and against its sources.

One walk: manifest, records and what lies beside the parts; then each part, its lists and shards;
then, with `--deep`, sources, from which documents are made again.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from streaming_ext.dataset.layout import (
    DIGESTS_FOLDER,
    DOCUMENTS_FOLDER,
    DUPLICATES_FOLDER,
)
from streaming_ext.dataset.record import PartRecord
from streaming_ext.errors import NotADatasetError
from tasks.core.check.copies import FirstCopies, check_digests
from tasks.core.check.deep import compare_with_sources
from tasks.core.check.findings import Outcome, Progress, Report
from tasks.core.check.manifest import Opened, open_checked
from tasks.core.check.part import PartFound, check_part
from tasks.core.check.sample import DEFAULT_SAMPLE, choose_parts
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.storage import Storage


def verify(
    storage: Storage,
    *,
    generation: str | None = None,
    deep: bool = False,
    deep_sample: int = DEFAULT_SAMPLE,
    seed: int = 0,
    workers: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Check every byte of a dataset; damage becomes a finding and never ends the check.

    Args:
        storage: where the dataset lies.
        generation: of an extended dataset: how the hash of its manifest begins; None for the
            newest.
        deep: also read source files again: on which side of the holdout each of their rows
            belongs, which of them have no text, and the ids of a sample of documents.
        deep_sample: how many documents to tokenize again, spread over the parts; the source files
            of the parts that they lie in are read whole.
        seed: decides which documents those are.
        workers: threads; each holds one shard at a time.
        on_progress: called with the bytes that are done and all bytes, from any thread.

    Raises:
        NotADatasetError: there is no published dataset at this place.
    """
    began = time.monotonic()
    files = DatasetFiles(storage, storage.list(), generation=generation)
    out, progress = Outcome(), Progress(on_progress)
    dataset = open_checked(files, out)
    records, manifest = dataset.records, dataset.manifest
    if manifest is None and not records:
        raise NotADatasetError(f"{storage}: {out.findings[0]}, and there is no record of a part.")
    chosen: dict[int, int] = {}
    if deep and dataset.tokenizer is not None:
        documents = {
            part: sum(split.documents for split in record.splits.values())
            for part, record in records.items()
        }
        chosen = choose_parts(documents, deep_sample, seed)

    def check(record: PartRecord) -> PartFound:
        count = chosen.get(record.part, 0)
        return check_part(record, dataset, progress.done, sample=count, seed=seed)

    progress.expect(sum(file.size for record in records.values() for file in record.files()))
    with ThreadPoolExecutor(workers) as threads, progress:
        parts = [*threads.map(check, records.values())]
    for found in parts:
        out.take(found.out)
    firsts = _check_sums(dataset, parts, out)
    sampled = [one for found in parts for one in found.sampled]
    lists = out.is_sound(DOCUMENTS_FOLDER, DUPLICATES_FOLDER, DIGESTS_FOLDER) and dataset.is_whole
    if not any(record.spec.shuffle or record.spec.deduplicate for record in records.values()):
        lists = True  # each part is compared by itself, if its own list is sound
    if sampled and dataset.tokenizer is not None and lists:
        before = len(out.findings)
        hashes = compare_with_sources(
            dataset, dataset.tokenizer, sampled, firsts, out, progress=progress, workers=workers
        )
        # The hashes that are kept tell what a copy is: where they are wrong, the lists are not.
        others = [finding for finding in out.findings[before:] if finding.file != DUPLICATES_FOLDER]
        if firsts is not None and hashes != firsts.all_hashes and not others:
            del out.findings[before:]
            out.found(DIGESTS_FOLDER, "the hashes are not those of the texts of the sources")
    return Report(
        dataset=str(storage),
        parts=len(records if manifest is None else manifest.parts),
        findings=tuple(sorted(set(out.findings))),
        checked=out.checked,
        deep=deep,
        asked=deep_sample if deep else 0,
        imported=manifest is not None and manifest.spec.imported is not None,
        seconds=time.monotonic() - began,
    )


def _check_sums(dataset: Opened, parts: Sequence[PartFound], out: Outcome) -> FirstCopies | None:
    """Check what all parts say together, where their lists are sound; returns the first copies."""
    manifest = dataset.manifest
    if manifest is None or not (dataset.is_whole and out.is_sound(DOCUMENTS_FOLDER)):
        return None
    if manifest.shuffled is not None:
        listed = np.sum([found.of_sources for found in parts], axis=0)
        for number in np.flatnonzero(listed != [source.documents for source in dataset.sources]):
            source = dataset.sources[number]
            words = f"{source.documents} documents of {source.identity.url}, the parts list "
            out.found(manifest.shuffled.sources.path, f"{words}{listed[number]}", kind="documents")
    copies = [found.copies for found in parts if found.copies is not None]
    return check_digests(manifest, dataset.files, copies, out) if manifest.digests else None
