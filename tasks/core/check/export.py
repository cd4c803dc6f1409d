"""The checks of exports and copies: every byte against its hash, and an export against its dataset.

To check an export, the documents of the dataset are exported again, and the hashes of the result
are compared with the recorded ones. If they agree, the export holds the same ids, document for
document.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from streaming_ext.base.errors import (
    CorruptDatasetError,
    DatasetError,
    MissingFolderError,
    NotADatasetError,
    StorageError,
    UsageError,
    command,
)
from streaming_ext.format.layout import EXPORT, RUNS_FOLDER
from streaming_ext.format.schema import from_json, to_json
from streaming_ext.store import Storage, open_storage
from tasks.core.check.findings import Outcome, Progress, Report, differences
from tasks.core.derive.export import export_manifest, export_part, plan_positions
from tasks.core.derive.export_format import (
    ExportFiles,
    ExportManifest,
    ExportRecord,
    all_spans,
    made_files,
    read_export,
    record_path,
)
from tasks.core.derive.merging import contents_of
from tasks.core.engine.output_files import Stretch, all_sizes, file_sizes, hash_of, wrong_bytes
from tasks.core.reading.dataset_files import DatasetFiles, read_dataset
from tasks.core.reading.documents import PartOfDataset

OnProgress = Callable[[int, int], None]
_OTHER = "does not hold the documents of the dataset, id by id"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportReport(Report):
    """The result of checking an export.

    Attributes:
        export: the export that was checked.
        dataset: the dataset that it was made from.
        not_compared: the reason why it was not compared with the dataset; empty if it was.
        files, bytes: the files and bytes of the export that were read.
        documents, tokens: the documents and tokens of the dataset that were compared.
    """

    export: str
    dataset: str
    not_compared: str
    files: int
    bytes: int
    documents: int
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyReport(Report):
    """The result of comparing a copy with its original; `files` and `bytes` count what was read."""

    original: str
    copy: str
    files: int
    bytes: int


def check_spans(
    storage: Storage,
    spans: Sequence[Stretch],
    known: Collection[str],
    *,
    out: Outcome,
    progress: Progress,
    workers: int,
) -> None:
    """Check that a storage holds some files and no others, byte for byte.

    Args:
        storage: the storage to check.
        spans: all bytes of the files.
        known: the paths of other files that may be there.
        out: gets the findings.
        progress: gets the bytes that are read.
        workers: the number of threads.
    """
    wanted = file_sizes(spans)
    allowed = {*wanted, *known}
    for path, size in all_sizes(storage).items():
        if path not in allowed and not path.startswith(f"{RUNS_FOLDER}/"):
            out.found(path, f"{size} bytes that nothing lists")
        elif size != wanted.get(path, size):
            out.found(path, f"{size} bytes, expected {wanted[path]}")

    def check(span: Stretch) -> str:
        progress.done(span.size)
        try:
            return wrong_bytes(storage, span)
        except StorageError as error:
            return str(error)

    with ThreadPoolExecutor(workers) as threads, progress:
        for span, problem in zip(spans, threads.map(check, spans), strict=True):
            if problem:
                out.found(span.path, problem)


def compare_copy(
    original: Storage,
    copy: Storage,
    *,
    workers: int = 1,
    on_progress: OnProgress = lambda done, total: None,
) -> CopyReport:
    """Read every byte of a copy; each fault becomes a finding.

    Args:
        original: the original; only its metadata are read.
        copy: the copy to check.
        workers: the number of threads.
        on_progress: a function that is called with the bytes done and all bytes.

    Raises:
        NotADatasetError: one of the two is not a published dataset or export.
        CorruptDatasetError: the metadata of the original are damaged.
    """
    began, out, progress = time.monotonic(), Outcome(), Progress(on_progress)
    contents = contents_of(original)
    manifest, spans = contents.path, contents.spans
    if (found := hash_of(copy, manifest)) is None:
        raise NotADatasetError(
            f"{copy}: no {manifest}, so this is no finished copy. Run "
            f"{command('copy', original, copy)} to finish it."
        )
    if found != contents.manifest.xxh128:
        out.found(manifest, "is another one")
    total = sum(span.size for span in spans)
    progress.expect(total)
    check_spans(copy, spans, [manifest], out=out, progress=progress, workers=workers)
    return CopyReport(
        original=str(original),
        copy=str(copy),
        findings=out.sorted(),
        files=len({span.path for span in spans}),
        bytes=total,
        seconds=time.monotonic() - began,
    )


def verify_export(
    storage: Storage,
    *,
    workers: int = 1,
    on_progress: OnProgress = lambda done, total: None,
) -> ExportReport:
    """Check every byte of an export; each fault becomes a finding.

    Args:
        storage: the storage of the export.
        workers: the number of threads; each holds one shard of the dataset at a time.
        on_progress: a function that is called with the bytes done and all bytes.

    Raises:
        NotADatasetError: there is no published export.
        CorruptDatasetError: its manifest is damaged.
    """
    began, out, progress = time.monotonic(), Outcome(), Progress(on_progress)
    manifest = read_export(storage)
    if to_json(manifest) != storage.read(EXPORT):
        out.found(EXPORT, "not in the form in which it is written")
    records = _records(storage, manifest, out)
    spans = all_spans(manifest, records.values())
    total = sum(span.size for span in spans)
    progress.expect(2 * total)
    known = [EXPORT, *(record.path for record in manifest.records)]
    check_spans(storage, spans, known, out=out, progress=progress, workers=workers)
    not_compared = _compare(manifest, records, out, progress, workers)
    compared = [] if not_compared else records.values()
    return ExportReport(
        export=str(storage),
        dataset=manifest.dataset,
        not_compared=not_compared,
        findings=out.sorted(),
        files=len(file_sizes(spans)),
        bytes=total,
        documents=sum(record.documents for record in compared),
        tokens=sum(record.tokens for record in compared),
        seconds=time.monotonic() - began,
    )


def _records(storage: Storage, manifest: ExportManifest, out: Outcome) -> dict[int, ExportRecord]:
    """Read the records that are as listed; return them by part, in order."""
    files, records = DatasetFiles(storage, all_sizes(storage)), {}
    for part, listed in enumerate(manifest.records):
        with out.about(listed.path):
            record = from_json(ExportRecord, files.read(listed), where=listed.path)
            if record.part != part:
                raise CorruptDatasetError("the record of another part")
            if words := differences(manifest.identity, record.identity):
                out.found(EXPORT, f"{listed.path} is of another export: identity.{words}")
            records[part] = record
    return records


def _compare(
    manifest: ExportManifest,
    records: dict[int, ExportRecord],
    out: Outcome,
    progress: Progress,
    workers: int,
) -> str:
    """Compare an export with its dataset; return the reason if that is impossible, else ""."""
    identity, where = manifest.identity, manifest.dataset
    is_whole = len(records) == len(manifest.records)
    try:
        storage = open_storage(where)
        _, dataset, parts = read_dataset(storage, generation=identity.dataset_manifest.xxh128)
        form, positions = plan_positions(identity, dataset, parts)
    except MissingFolderError:
        for name in ("documents", "tokens"):
            listed = sum(getattr(split, name) for split in manifest.splits.values())
            if is_whole and listed != (
                held := sum(getattr(each, name) for each in records.values())
            ):
                out.found(EXPORT, f"its splits hold {listed:,} {name}, its records {held:,}")
        return f"{where} is not there"
    except (DatasetError, StorageError, UsageError) as error:
        out.found(where, f"cannot be compared with: {error}")
        return "it cannot be opened, or is another dataset"

    def compare(record: ExportRecord) -> Outcome:
        """Export a part again, and compare the result."""
        found, own = Outcome(), positions[record.part]
        with found.about(where):
            part = PartOfDataset(storage, dataset, record.part)
            made = export_part(identity, form, part, own, ExportFiles(), memories={})
            _compare_spans(record.spans, made.spans, found)
            if not found.findings and made != record:
                found.found(record_path(record.part), _OTHER)
        progress.done(sum(span.size for span in record.spans))
        return found

    not_compared, spans = "", manifest.spans
    if manifest.made_with != form.made_with:
        made, here = (
            ", ".join(map(" ".join, each.items())) for each in (manifest.made_with, form.made_with)
        )
        not_compared = f"made with {made or 'none'}, here is {here or 'none'}"
    else:
        with ThreadPoolExecutor(workers) as threads, progress:
            for found in threads.map(compare, records.values()):
                out.take(found)
        if is_whole:
            files = ExportFiles()
            form.finish(made_files(form.totals, records.values()), files)
            _compare_spans(spans, files.spans, out)
            if {*spans} == {*files.spans}:
                spans = tuple(files.spans)
    again = export_manifest(where, identity, form, records.values(), spans)
    listed = {"made_with": manifest.made_with}
    if not is_whole:
        listed["records"] = manifest.records
    if words := differences(manifest, again.model_copy(update=listed)):
        out.found(EXPORT, words)
    return not_compared


def _compare_spans(listed: Iterable[Stretch], made: Iterable[Stretch], out: Outcome) -> None:
    for path in {span.path for span in {*listed} ^ {*made}}:
        out.found(path, _OTHER)
