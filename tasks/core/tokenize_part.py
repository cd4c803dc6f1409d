"""From one source file to its token streams on scratch, a file a split."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.errors import EngineMismatchError, SourceError, StorageError, TokenizerError
from streaming_ext.layout import SPLITS, Split
from tasks.core.documents import DocumentBatch, read_documents
from tasks.core.holdout import document_hashes, held_out
from tasks.core.jobs import Progress, TokenizedPart, TokenizedSplit, TokenizeJob
from tasks.core.sources import SourceFile
from tasks.core.sources.fetch import identity_of
from tasks.core.text_array import text_buffers
from tasks.core.tokenizer.engine import Encoded, Engine, audit_sample
from tasks.core.tokenizer.tokenizer import Tokenizer

DOCUMENTS_FILE = "documents.parquet"
RESULT_FILE = "tokenized.json"
DOCUMENTS_SCHEMA = pa.schema([("row", pa.int64()), ("split", pa.string()), ("tokens", pa.uint32())])
_DOCUMENTS_A_ROW_GROUP = 2**20
_AUDIT_BYTES = 2**13  # of text a batch, a two-thousandth: the reference is thirty times slower
_AUDIT_DOCUMENT_BYTES = 2**17  # longer documents are left out of the audit


def tokens_file(split: Split) -> str:
    """Name of a split's token file: its ids back to back, little-endian."""
    return f"{split}.tokens"


@dataclass(slots=True)
class _Counts:
    rows: int = 0
    nulls: int = 0
    empty: int = 0
    text_bytes: int = 0
    audited: int = 0
    documents: dict[Split, int] = field(default_factory=dict)
    tokens: dict[Split, int] = field(default_factory=dict)


def tokenize_part(
    job: TokenizeJob,
    tokenizer: Tokenizer,
    engine: Engine,
    report: Callable[[Progress], None] = lambda progress: None,
) -> TokenizedPart:
    """Tokenize a source file into `job.scratch`; memory does not depend on the file's size.

    Raises:
        SourceError: the file is damaged or changes while it is read.
        EngineMismatchError: fast engine and reference disagree on an audited document.
        StorageError: scratch is full or not writable.
    """
    began = time.monotonic()
    local = Path(job.local_path)
    source = identity_of(
        SourceFile(url=job.source_url, size=job.source_size, version=job.source_version), local
    )
    before = _state_of(local)
    folder = Path(job.scratch)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with _PartFiles(folder, job) as files:
            counts = _tokenize_batches(job, tokenizer, engine, files, report)
    except OSError as error:
        raise StorageError(f"Cannot write to scratch {folder}: {error.strerror}.") from error
    if before is None or _state_of(local) != before:
        raise SourceError(f"{job.source_url}: changed while it was read. Run again.")
    result = TokenizedPart(
        part=job.part,
        source=source,
        rows=counts.rows,
        null_documents=counts.nulls,
        empty_documents=counts.empty,
        text_bytes=counts.text_bytes,
        splits={
            split: TokenizedSplit(documents=counts.documents[split], tokens=counts.tokens[split])
            for split in job.spec.splits
        },
        audited_documents=counts.audited,
        engine=engine.name,
        seconds=time.monotonic() - began,
        ended=time.time(),
    )
    (folder / RESULT_FILE).write_text(result.model_dump_json())
    return result


def _state_of(file: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written to or replaced; None when it is gone."""
    try:
        state = file.stat()
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns


def _tokenize_batches(
    job: TokenizeJob,
    tokenizer: Tokenizer,
    engine: Engine,
    files: "_PartFiles",
    report: Callable[[Progress], None],
) -> _Counts:
    spec = job.spec
    counts = _Counts(documents=dict.fromkeys(spec.splits, 0), tokens=dict.fromkeys(spec.splits, 0))
    for batch in read_documents(Path(job.local_path), spec.text_column, name=job.source_url):
        hashes = document_hashes(batch.texts, seed=spec.holdout_seed)
        rows = _rows_to_audit(hashes, batch.texts)
        try:
            encoded = engine.encode(batch.texts)
            audit_sample(tokenizer, batch.texts, encoded, rows)
        except (EngineMismatchError, SourceError) as error:
            where = f"{job.source_url}, in the batch from row {int(batch.rows[0])} on"
            raise type(error)(f"{where}: {error}") from error
        _check_ids(encoded, batch, tokenizer, where=job.source_url)

        # lengths: (documents of the batch that have a token,)
        lengths = np.diff(encoded.offsets)
        kept = lengths > 0
        stream = np.insert(
            encoded.ids.astype(spec.dtype), encoded.offsets[1:][kept], tokenizer.eot_id
        )
        in_holdout = held_out(hashes, fraction=spec.holdout_fraction)[kept]
        files.add(stream, batch.rows[kept], lengths[kept], in_holdout)

        counts.rows += batch.num_rows
        counts.nulls += batch.num_rows - len(batch.texts)
        counts.empty += len(lengths) - int(kept.sum())
        counts.text_bytes += _num_bytes(batch.texts)
        counts.audited += len(rows)
        for split, mask in (("train", ~in_holdout), ("holdout", in_holdout)):
            if split in spec.splits:
                counts.documents[split] += int(mask.sum())
                counts.tokens[split] += int((lengths[kept][mask] + 1).sum())
        report(
            Progress(
                fraction=batch.fraction,
                text_bytes=counts.text_bytes,
                tokens=sum(counts.tokens.values()),
            )
        )
    files.check(counts.tokens)
    return counts


def _check_ids(encoded: Encoded, batch: DocumentBatch, tokenizer: Tokenizer, *, where: str) -> None:
    if len(encoded.ids) == 0:
        return
    if int(encoded.ids.max()) >= tokenizer.vocab_size:
        raise TokenizerError(
            f"{where}: id {int(encoded.ids.max())} is outside the vocabulary of "
            f"{tokenizer.vocab_size} ids of {tokenizer.name}."
        )
    ends = np.flatnonzero(encoded.ids == tokenizer.eot_id)
    if len(ends):
        document = int(np.searchsorted(encoded.offsets, ends[0], side="right")) - 1
        raise TokenizerError(
            f"{where}: the text of row {int(batch.rows[document])} gives the end-of-text id "
            f"{tokenizer.eot_id}, so documents could not be told apart. Pass another --eot-token."
        )


def _rows_to_audit(hashes: npt.NDArray[np.uint64], texts: pa.LargeStringArray) -> list[int]:
    # The documents with the smallest hashes: a sample that is the same in every run.
    sizes = np.diff(text_buffers(texts)[1])
    candidates = np.flatnonzero(sizes <= _AUDIT_DOCUMENT_BYTES)
    ordered = candidates[np.argsort(hashes[candidates], kind="stable")]
    taken = int(np.searchsorted(np.cumsum(sizes[ordered]), _AUDIT_BYTES)) + 1
    return [int(row) for row in ordered[:taken]]


def _num_bytes(texts: pa.LargeStringArray) -> int:
    _, offsets = text_buffers(texts)
    return int(offsets[-1] - offsets[0])


def _runs(in_holdout: npt.NDArray[np.bool_]) -> Iterator[tuple[Split, int]]:
    """Runs of documents of one split: the split, and the index of the run's last document."""
    for last in np.flatnonzero(np.diff(in_holdout, append=~in_holdout[-1:])).tolist():
        yield SPLITS[int(in_holdout[last])], last


class _PartFiles:
    """The files of one part on scratch, open for writing."""

    def __init__(self, folder: Path, job: TokenizeJob) -> None:
        self._folder = folder
        self._dtype = np.dtype(job.spec.dtype)
        self._splits = job.spec.splits
        self._tokens: dict[Split, BinaryIO] = {}
        self._documents: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []

    def __enter__(self) -> "_PartFiles":
        for split in self._splits:
            self._tokens[split] = (self._folder / tokens_file(split)).open("wb")
        self._documents = pq.ParquetWriter(
            self._folder / DOCUMENTS_FILE, DOCUMENTS_SCHEMA, compression="zstd"
        )
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._flush_documents()
        finally:
            for file in self._tokens.values():
                file.close()
            if self._documents is not None:
                self._documents.close()

    def add(
        self,
        stream: npt.NDArray[Any],
        rows: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        in_holdout: npt.NDArray[np.bool_],
    ) -> None:
        """Append documents: their ids with end-of-text ids between, their rows and lengths."""
        # ends: (documents,), where each document ends in the stream
        ends = np.cumsum(lengths + 1)
        start = 0
        for split, last in _runs(in_holdout):
            self._tokens[split].write(stream[start : ends[last]].data)
            start = int(ends[last])
        names = np.array(SPLITS, dtype=object)[in_holdout.astype(np.int8)]
        self._pending.append(
            pa.record_batch(
                [rows, pa.array(names, pa.string()), lengths.astype(np.uint32)],
                schema=DOCUMENTS_SCHEMA,
            )
        )
        if sum(batch.num_rows for batch in self._pending) >= _DOCUMENTS_A_ROW_GROUP:
            self._flush_documents()

    def _flush_documents(self) -> None:
        table = pa.Table.from_batches(self._pending, DOCUMENTS_SCHEMA).combine_chunks()
        self._pending = []
        if len(table) and self._documents is not None:
            self._documents.write_table(table, row_group_size=len(table))

    def check(self, tokens: dict[Split, int]) -> None:
        """Make sure that every counted token is in its file."""
        for split, count in tokens.items():
            file = self._tokens[split]
            file.flush()
            if file.tell() != count * self._dtype.itemsize:
                raise StorageError(f"{file.name}: {file.tell()} bytes for {count} tokens.")
