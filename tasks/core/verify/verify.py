"""Checking a published dataset against everything that it promises."""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from streaming_ext.dataset.layout import (
    DIGESTS_FOLDER,
    DOCUMENTS_FOLDER,
    DUPLICATES_FOLDER,
    EXTENDING,
    MANIFEST,
    PARTS_FOLDER,
    RUNS_FOLDER,
    SPLITS,
    TOKENIZER_FOLDER,
    documents_path,
    index_path,
    part_folder,
    record_path,
)
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.record import PartRecord
from streaming_ext.dataset.shuffled.source_table import sources_of
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import (
    CorruptDatasetError,
    NotADatasetError,
    StoppedError,
    StorageError,
    TokenizerError,
)
from streaming_ext.text.tokenizer.tokenizer import MAX_FILE_BYTES, TOKENIZER_FILES, Tokenizer
from tasks.core.extending.begun import is_of_extension
from tasks.core.outputs.whole import digests_of, files_of_part, of_generations, tables_of
from tasks.core.reading.dataset_files import MAX_JSON_BYTES, DatasetFiles, open_tokenizer
from tasks.core.storage import Storage
from tasks.core.verify.deep import DEFAULT_SAMPLE, choose_parts, size_of, verify_source
from tasks.core.verify.deep_duplicates import verify_all_texts
from tasks.core.verify.deep_shuffled import verify_shuffled_sources
from tasks.core.verify.digests import verify_digests
from tasks.core.verify.duplicates import verify_duplicates
from tasks.core.verify.findings import Checked, Finding, Outcome, Report
from tasks.core.verify.order import ShuffledSources
from tasks.core.verify.part import verify_part
from tasks.core.verify.records import (
    read_all_records,
    read_manifest,
    spec_problems,
    verify_generations,
    verify_sums,
)

__all__ = ["Checked", "Finding", "Report", "verify"]


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
    out = Outcome()
    manifest = read_manifest(files, out)
    records = read_all_records(files, manifest, out)
    if manifest is not None:
        verify_sums(manifest, records, files, out)
        verify_generations(manifest, files, out)
    elif not records:
        raise NotADatasetError(f"{storage}: {out.findings[0]}, and there is no record of a part.")
    _find_extras(files, manifest, records, out)
    tokenizer = _verify_tokenizer(files, manifest, records, out)

    sound = {
        part: record for part, record in sorted(records.items()) if not spec_problems(record.spec)
    }
    documents = {
        part: sum(split.documents for split in record.splits.values())
        for part, record in sound.items()
    }
    chosen = choose_parts(documents, deep_sample, seed) if deep and tokenizer else {}
    sources = _shuffled_sources(files, manifest, out)
    is_shuffled = manifest is not None and manifest.shuffled is not None
    work = _Work(workers, _total_bytes(sound.values(), {} if is_shuffled else chosen), on_progress)
    for part, record in sound.items():
        work.submit(
            partial(
                _verify_part,
                record,
                files,
                tokenizer,
                work.report,
                sample=0 if is_shuffled else chosen.get(part, 0),
                seed=seed,
                sources=sources,
            )
        )
    out.take(work.results())
    is_whole = manifest is not None and len(sound) == len(manifest.parts)
    if is_whole and manifest is not None and manifest.spec.deduplicate is not None:
        verify_digests(manifest, files, out)
        _verify_copies(manifest, sound, files, sources, out, report=work.go_on, deep=deep)
    if sources is not None:
        sources.compare(out)
        lists_sound = not any(finding.file.startswith(DOCUMENTS_FOLDER) for finding in out.findings)
        if chosen and tokenizer is not None and lists_sound:
            found = verify_shuffled_sources(
                sound, sources.sources, files, tokenizer,
                chosen=chosen, seed=seed, report=work.go_on,
            )  # fmt: skip
            out.take([found])
    return Report(
        dataset=str(storage),
        parts=len(manifest.parts) if manifest is not None else len(records),
        findings=tuple(sorted(set(out.findings))),
        checked=out.checked,
        deep=deep,
        asked=deep_sample if deep else 0,
        imported=manifest is not None and manifest.spec.imported is not None,
        seconds=time.monotonic() - began,
    )


def _verify_part(
    record: PartRecord,
    files: DatasetFiles,
    tokenizer: Tokenizer | None,
    report: Callable[[int], None],
    *,
    sample: int,
    seed: int,
    sources: ShuffledSources | None,
) -> Outcome:
    out = verify_part(record, files, report, sources)
    documents = documents_path(record.part)
    if sample and tokenizer and all(finding.file != documents for finding in out.findings):
        source = verify_source(record, files, tokenizer, count=sample, seed=seed, report=report)
        out.take([source])
    return out


def _verify_copies(
    manifest: Manifest,
    records: dict[int, PartRecord],
    files: DatasetFiles,
    sources: ShuffledSources | None,
    out: Outcome,
    *,
    report: Callable[[int], None],
    deep: bool,
) -> None:
    """What was left out as copies; with `deep` all texts of the sources are compared again."""
    is_shuffled = any(record.spec.shuffle is not None for record in records.values())
    if is_shuffled and sources is None:
        return  # the table of sources is damaged
    verify_duplicates(records, files, sources, out)
    folders = (DOCUMENTS_FOLDER, DUPLICATES_FOLDER, DIGESTS_FOLDER)
    if deep and not any(finding.file.startswith(folders) for finding in out.findings):
        of_sources = None if sources is None else sources.sources
        out.take([verify_all_texts(manifest, records, of_sources, files, report=report)])


def _shuffled_sources(
    files: DatasetFiles, manifest: Manifest | None, out: Outcome
) -> ShuffledSources | None:
    """The table of sources of a shuffled dataset; None where there is none, or it is damaged."""
    if manifest is None or manifest.shuffled is None:
        return None
    file = manifest.shuffled.sources
    try:
        data = files.read(file, limit=MAX_JSON_BYTES)
        sources = sources_of(data)
    except (CorruptDatasetError, StorageError) as error:
        out.found(file.path, str(error))
        return None
    out.count(files=1, bytes=len(data))
    listed = {"rows": sum(source.rows for source in sources), "files": len(sources)}
    for name, found in listed.items():
        if (told := getattr(manifest.shuffled, name)) != found:
            out.found(MANIFEST, f"{told} {name} of all sources, {file.path} lists {found}")
    return ShuffledSources(sources, manifest)


class _Work:
    """Threads at work on parts, and the bytes that they have done."""

    def __init__(self, workers: int, total: int, on_progress: Callable[[int, int], None]) -> None:
        self._threads = ThreadPoolExecutor(workers)
        self._futures: list[Future[Outcome]] = []
        self._stopped = threading.Event()
        self._raised: BaseException | None = None  # by the listener
        self._lock = threading.Lock()
        self._done, self._total, self._on_progress = 0, total, on_progress

    def submit(self, check: Callable[[], Outcome]) -> None:
        """Have a check done by the next free thread."""
        self._futures.append(self._threads.submit(check))

    def report(self, num_bytes: int) -> None:
        """Called by a check after each file; ends it where the whole is being stopped."""
        with self._lock:
            if self._stopped.is_set():
                raise StoppedError("verifying was stopped")
            self._done += num_bytes
            try:
                self._on_progress(self._done, self._total)
            except BaseException as error:
                self._raised = error
                self._stopped.set()
                raise

    def go_on(self, num_bytes: int) -> None:
        """Called by what is looked at behind the checks of the parts."""
        self._on_progress(self._total, self._total)

    def results(self) -> Iterable[Outcome]:
        """What each check found, in the order of submission; stops all when one fails."""
        try:
            return [future.result() for future in self._futures]
        except StoppedError:
            raise self._raised or AssertionError("stopped by nobody") from None
        finally:
            self._stopped.set()
            self._threads.shutdown(cancel_futures=True)


def _total_bytes(records: Iterable[PartRecord], chosen: dict[int, int]) -> int:
    total = 0
    for record in records:
        total += sum(file.size for file in record.files())
        total += sum(map(size_of, record.made_of)) if record.part in chosen else 0
    return total


def _verify_tokenizer(
    files: DatasetFiles,
    manifest: Manifest | None,
    records: dict[int, PartRecord],
    out: Outcome,
) -> Tokenizer | None:
    """Hashes of the tokenizer's files, and whether it opens as the one that the ids belong to."""
    spec: DatasetSpec = manifest.spec if manifest else next(iter(records.values())).spec
    damaged = False
    for file in manifest.tokenizer_files if manifest else ():
        try:
            data = files.read(file, limit=MAX_FILE_BYTES)
            out.count(files=1, bytes=len(data))
        except (CorruptDatasetError, StorageError) as error:
            damaged = True
            out.found(file.path, str(error))
    if damaged:
        return None
    try:
        tokenizer = open_tokenizer(files, spec)
    except (TokenizerError, StorageError) as error:
        out.found(TOKENIZER_FOLDER, str(error))
        return None
    opened, recorded = tokenizer.description(), spec.tokenizer.model_dump(exclude_none=True)
    if opened != recorded:
        different = [key for key in {**opened, **recorded} if opened.get(key) != recorded.get(key)]
        for key in different:
            out.found(
                MANIFEST,
                f"spec.tokenizer.{key} is {recorded.get(key)!r}, the saved tokenizer has "
                f"{opened.get(key)!r}",
            )
        return None
    return tokenizer


def _find_extras(
    files: DatasetFiles,
    manifest: Manifest | None,
    records: dict[int, PartRecord],
    out: Outcome,
) -> None:
    """Files that nothing lists, leftovers of files on their way among them."""
    known = {MANIFEST, *(index_path(split) for split in SPLITS)}
    unknown_folders = {RUNS_FOLDER}  # of which nothing tells what belongs there
    unknown_files = set()
    if manifest is None:
        unknown_folders |= {TOKENIZER_FOLDER, PARTS_FOLDER}
    else:
        known = {MANIFEST, *(index_path(split) for split in manifest.splits)}
        kind = manifest.spec.tokenizer.kind
        known |= {file.path for file in of_generations(manifest)}
        known |= {f"{TOKENIZER_FOLDER}/{name}" for name in TOKENIZER_FILES[kind]}
        known |= {file.path for file in (*tables_of(manifest), *digests_of(manifest))}
        for summary in manifest.parts:
            known.add(record_path(summary.part))
            if summary.part not in records:  # reported: its record is damaged
                unknown_folders |= {part_folder(split, summary.part) for split in SPLITS}
                unknown_files |= {*files_of_part(summary.part)}
    for record in records.values():
        known |= {file.path for file in record.files()} | {documents_path(record.part)}
    grows = EXTENDING in files.sizes or files.generation is not None
    known |= {EXTENDING}
    for path, size in files.sizes.items():
        if grows and manifest is not None and is_of_extension(path, manifest):
            continue
        folders = {path.rsplit("/", depth)[0] for depth in range(1, path.count("/") + 1)}
        if path not in known and path not in unknown_files and not folders & unknown_folders:
            out.found(path, f"{size} bytes that nothing in the dataset lists")
    if EXTENDING in files.sizes:
        return  # what is on its way is of the extension: it goes on with it or removes it
    try:
        leftovers = files.storage.leftovers()
    except StorageError as error:
        if error.transient:
            raise
        return  # who may only read may not look for uploads; they are no part of the dataset
    for leftover in leftovers:
        out.found(leftover, "a file that was on its way when a run was killed; it can be removed")
