"""The check of a published dataset: against its own records, and against its sources.

It checks the manifest, the records and the files of no part; then the lists and shards of each
part; then, with `--deep`, the sources, from which documents are made again.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import NotADatasetError
from streaming_ext.base.extras import require
from streaming_ext.format.duplicates import codes
from streaming_ext.format.layout import (
    DIGESTS_FOLDER,
    DOCUMENTS_FOLDER,
    DUPLICATES_FOLDER,
    SPLITS,
    Split,
    documents_path,
    record_path,
)
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.provenance import read_added
from streaming_ext.format.record import PartRecord
from streaming_ext.format.shuffled import document_keys, key_range
from streaming_ext.store import Storage
from tasks.core.check.copies import Copies, check_copies, check_digests, check_witnesses, exist
from tasks.core.check.deep import compare_with_sources, draw
from tasks.core.check.findings import DatasetReport, Outcome, Progress
from tasks.core.check.manifest import Opened, open_checked
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.reading.documents import document_ends, documents_of, read_shard


def check_part(
    record: PartRecord, dataset: Opened, report: Callable[[int], None]
) -> tuple[Outcome, Copies | None]:
    """Check the files of a part against its record; one shard is in memory at a time.

    Args:
        record: the record of the part.
        dataset: the dataset of the part.
        report: a function that is called with the bytes of each finished file; its errors end the
            check.

    Returns:
        The findings and counts; the copies that the part left out, None if its lists are damaged.
    """
    out, listed, copies = Outcome(), None, None
    path = documents_path(record.part)
    with out.about(path):
        listed = documents_of(dataset.files, record)
        out.count(files=1, bytes=record.documents.size)
        if words := _problem_of_rows(record, listed, dataset):
            out.found(path, words)
            listed = None
    added = {} if dataset.manifest is None else dataset.manifest.added_to(record.part)
    for file, columns in added.items():
        with out.about(file.path):
            read_added(dataset.files.read(file), columns, record.documents_kept)
    report(record.documents.size)
    out.count(bad_documents=record.bad_documents)
    if listed is not None and (dataset.sources or record.spec.shuffle is None):
        copies = check_copies(record, listed, dataset, out)
    for split in record.splits:
        lengths = None
        if listed is not None:
            own = listed.filter(pc.equal(listed["split"], SPLITS.index(split)))
            lengths = own["tokens"].to_numpy()
        _check_split(record, split, lengths, dataset, out=out, report=report)
    return out, copies


def _problem_of_rows(record: PartRecord, listed: pa.Table, dataset: Opened) -> str:
    """Describe a fault in the list itself; return "" if there is none."""
    rows = listed["row"].to_numpy()
    splits = [SPLITS.index(split) for split in record.splits]
    wrong = (listed["tokens"].to_numpy() == 0) | ~np.isin(listed["split"].to_numpy(), splits)
    if record.spec.shuffle is None:
        wrong |= (rows >= record.rows) | (rows <= np.append(-1, rows)[: len(rows)])
    elif dataset.sources and dataset.manifest is not None:
        wrong |= _out_of_order(record, listed, dataset, dataset.manifest)
    if not wrong.any():
        return ""
    index = int(np.flatnonzero(wrong)[0])
    return f"document {index} (row {rows[index]}): row, split or length cannot be right"


def _out_of_order(
    record: PartRecord, listed: pa.Table, dataset: Opened, manifest: Manifest
) -> npt.NDArray[np.bool_]:
    """Flag documents outside the part's generation or range of keys, or out of order."""
    summaries = [*(each.shuffled for each in manifest.generations), manifest.shuffled]
    ends = [0, *(each.parts for each in manifest.generations), len(manifest.parts)]
    files = [0, *(summary.files for summary in summaries if summary is not None)]
    number = bisect_right(ends, record.part) - 1
    low, high = key_range(record.part - ends[number], ends[number + 1] - ends[number])
    sources, rows, positions = (listed[name].to_numpy() for name in ("source", "row", "place"))
    wrong: npt.NDArray[np.bool_] = (sources < files[number]) | (sources >= files[number + 1])
    wrong |= ~exist(sources, rows, [source.rows for source in dataset.sources])
    keys, own = document_keys(record.spec.shuffle_seed, sources, positions), codes(sources, rows)
    if record.spec.subset is None:  # a part of a subset covers several ranges
        wrong |= (keys < np.uint64(low)) | (keys > np.uint64(high - 1))
    wrong |= np.lexsort((own, keys)) != np.arange(len(keys))
    wrong[1:] |= own[1:] == own[:-1]
    return wrong


def _check_split(
    record: PartRecord,
    split: Split,
    lengths: Ints | None,
    dataset: Opened,
    *,
    out: Outcome,
    report: Callable[[int], None],
) -> None:
    """Read the shards of a split, and compare them with the record and the listed lengths."""
    held, spec = record.splits[split], record.spec
    full = spec.shard_format.samples_per_shard
    is_packed = all(shard.samples == full for shard in held.shards[:-1])
    if held.padding >= spec.sequence_length or not is_packed:
        out.found(record_path(record.part), f"{split}: a shard or the last sample is not full")
    begins = [0, *accumulate(shard.samples * spec.sequence_length for shard in held.shards)]
    bos_id, ends, firsts = spec.tokenizer.bos_id, list[Ints](), list[Ints]()
    for begin, shard in zip(begins, held.shards, strict=False):
        path = f"{split}/{shard.name}"
        with out.about(path):
            # flat: (samples * sequence_length,)
            flat = read_shard(dataset.files, split, shard, spec)[0].reshape(-1)
            out.count(files=1, bytes=shard.size, shards=1, samples=shard.samples)
            if int(flat.max()) >= spec.tokenizer.vocab_size:
                sample, token = divmod(int(np.argmax(flat)), spec.sequence_length)
                words = f"id {flat.max()}, of {spec.tokenizer.vocab_size} ids"
                out.found(path, f"sample {sample}, token {token}: {words}")
            ends.append(document_ends(flat, spec.tokenizer.eot_id) + (begin - 1))
            if bos_id is not None:
                firsts.append(document_ends(flat, bos_id) + (begin - 1))
            del flat  # free it before the next one is read
        report(shard.size)
    is_read = len(ends) == len(held.shards)
    if is_read:
        out.count(documents=held.documents, tokens=held.tokens)
    if lengths is None:
        return
    counts = len(lengths), int((lengths + 1).sum())
    is_same = counts == (held.documents, held.tokens)
    if is_read:
        # padding: the positions after the last document
        padding = np.arange(counts[1], begins[-1])
        expected = np.append(np.cumsum(lengths + 1) - 1, padding)
        is_same = is_same and np.array_equal(expected, np.concatenate([padding[:0], *ends]))
        if bos_id is not None:
            starts = expected[: counts[0]] - lengths
            is_same = is_same and np.array_equal(starts, np.concatenate([padding[:0], *firsts]))
    if not is_same:
        words = f"{split}: the record, the list and the shards hold different documents"
        out.found(record_path(record.part), words)


def verify(
    storage: Storage,
    *,
    generation: str | None = None,
    deep: bool = False,
    deep_documents: int = 200,
    seed: int = 0,
    workers: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> DatasetReport:
    """Check every byte of a dataset; damage becomes a finding and does not end the check.

    Args:
        storage: the storage of the dataset.
        generation: the start of the hash of the manifest of a generation, if the dataset was
            extended; None for the newest generation.
        deep: True to also make some parts (of a shuffled dataset, some source files) again from
            their sources with the reference tokenizer, and compare.
        deep_documents: the least number of documents in these parts or files.
        seed: the seed for the choice of these.
        workers: the number of threads; each holds one shard at a time.
        on_progress: a function that is called with the bytes done and all bytes, from any thread.

    Raises:
        NotADatasetError: there is no published dataset.
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

    def check(record: PartRecord) -> tuple[Outcome, Copies | None]:
        return check_part(record, dataset, progress.done)

    progress.expect(sum(file.size for record in records.values() for file in record.files()))
    with ThreadPoolExecutor(workers) as threads, progress:
        parts = [*threads.map(check, records.values())]
    for found, _ in parts:
        out.take(found)
    folders = DOCUMENTS_FOLDER, DUPLICATES_FOLDER, DIGESTS_FOLDER
    if manifest is not None and parts and dataset.is_complete and out.is_sound(*folders):
        copies = [each for _, each in parts if each is not None]
        _check_sums(dataset, manifest, copies, out)
        if deep and out.is_sound(*folders, *SPLITS):  # damaged files cannot be compared
            drawn = draw(dataset, manifest, deep_documents, seed)
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
    dataset: Opened, manifest: Manifest, copies: Sequence[Copies], out: Outcome
) -> None:
    """Check the lists of all parts, which are sound by themselves, against each other.

    Args:
        dataset: the dataset that is checked.
        manifest: the manifest of the dataset.
        copies: the copies that each part left out.
        out: gets the findings.
    """
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
    if manifest.spec.lists_copies:
        check_witnesses(dataset.records.values(), dataset.files, copies, out)
