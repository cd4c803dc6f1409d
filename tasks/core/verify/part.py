"""Checking one part: its provenance, its shards, and whether the two and the record agree."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streaming_ext.dataset.compression import Compression
from streaming_ext.dataset.layout import SPLITS, Split, documents_path, record_path
from streaming_ext.dataset.provenance import (
    count_documents,
    documents_limit,
    lengths_of,
    read_provenance,
)
from streaming_ext.dataset.record import PartRecord
from streaming_ext.errors import CorruptDatasetError, StorageError
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.reading.shard_tokens import read_tokens
from tasks.core.verify.findings import Outcome
from tasks.core.verify.order import Order, ShuffledSources, order_of
from tasks.core.verify.stream import ExpectedLengths, StreamCheck


@dataclass(frozen=True, slots=True)
class _Counts:
    documents: int
    tokens: int  # with one end-of-text id a document

    def __str__(self) -> str:
        return f"{self.documents} documents of {self.tokens} tokens"


def verify_part(
    record: PartRecord,
    files: DatasetFiles,
    report: Callable[[int], None],
    sources: ShuffledSources | None = None,
) -> Outcome:
    """Check the files of a part against its record, F2 to F4 among it; one shard in memory.

    Args:
        record: already known to belong to the dataset's specification.
        files: of the dataset.
        report: called with the bytes of each file that is done; what it raises ends the check.
        sources: of a shuffled dataset; None where they cannot be told.
    """
    out = Outcome()
    documents = _read_documents(record, files, out)
    report(record.documents.size)
    out.count(bad_documents=record.bad_documents)
    order = order_of(record, sources)
    listed = _check_rows(record, documents, order, out) if documents is not None else None
    for split, held in record.splits.items():
        counts = _Counts(held.documents, held.tokens)
        in_list = listed.get(split) if listed is not None else None
        stream = _check_shards(
            record,
            split,
            documents=documents if listed else None,
            files=files,
            out=out,
            report=report,
        )
        if stream is None:
            # Its shards are reported already; what remains is list against record.
            if in_list is not None and in_list != counts:
                out.found(
                    documents_path(record.part),
                    f"lists {in_list} in {split}, the record says {counts}",
                )
            continue
        _compare(record, split, recorded=counts, in_list=in_list, stream=stream, out=out)
    return out


def _read_documents(record: PartRecord, files: DatasetFiles, out: Outcome) -> bytes | None:
    path = documents_path(record.part)
    if record.documents.path != path:
        out.found(record_path(record.part), f"names {record.documents.path!r}, expected {path!r}")
        return None
    try:
        data = files.read(
            record.documents, limit=documents_limit(record.rows, len(record.spec.keep_columns))
        )
    except (CorruptDatasetError, StorageError) as error:
        out.found(path, str(error))
        return None
    out.count(files=1, bytes=len(data))
    return data


def _check_rows(
    record: PartRecord, data: bytes, order: Order, out: Outcome
) -> dict[Split, _Counts] | None:
    """Rows and splits of the provenance; the counts of each split, None where it is no use."""
    path = documents_path(record.part)
    documents = dict.fromkeys(SPLITS, 0)
    tokens = dict.fromkeys(SPLITS, 0)
    first = 0
    try:
        total, recorded = count_documents(data), sum(s.documents for s in record.splits.values())
        if total > record.rows:
            out.found(path, f"lists {total} documents, the record says {recorded}")
            return None
        for batch in read_provenance(data):
            if tuple(batch.values) != record.spec.keep_columns:
                kept = " and ".join(batch.values) or "none"
                asked = " and ".join(record.spec.keep_columns) or "none"
                out.found(path, f"keeps the columns {kept}, the record says {asked}")
                return None
            if (words := order.problem(batch, first)) is not None:
                out.found(path, words)
                return None
            if len(empty := np.flatnonzero(batch.tokens == 0)):
                out.found(path, f"document {first + int(empty[0])} has no token: such are left out")
                return None
            for split in SPLITS:
                mask = batch.of(split)
                documents[split] += int(mask.sum())
                tokens[split] += int(batch.tokens[mask].sum())
            first += len(batch.rows)
    except CorruptDatasetError as error:
        out.found(path, str(error))
        return None
    order.finish()
    for split in SPLITS:
        if documents[split] and split not in record.splits:
            out.found(path, f"lists {documents[split]} documents in {split}, a split not made")
    return {split: _Counts(documents[split], tokens[split] + documents[split]) for split in SPLITS}


def _check_shards(
    record: PartRecord,
    split: Split,
    *,
    documents: bytes | None,
    files: DatasetFiles,
    out: Outcome,
    report: Callable[[int], None],
) -> StreamCheck | None:
    """Every shard of a split; None where one cannot be read, so that the stream has a gap."""
    held = record.splits[split]
    for words in _packing_problems(record, split):
        out.found(record_path(record.part), f"{split}: {words}")
    expected = None if documents is None else ExpectedLengths(lengths_of(documents, split))
    stream = StreamCheck(record.spec, expected)
    whole = True
    for shard in held.shards:
        path = f"{split}/{shard.name}"
        try:
            tokens = read_tokens(files, split, shard, record.spec)
        except (CorruptDatasetError, StorageError) as error:
            out.found(path, str(error))
            if whole:
                _take_problems(stream, out)
            # What follows is looked at by itself: a document may begin before it.
            whole, stream = False, StreamCheck(record.spec, None, begun=True)
        else:
            stream.add(path, tokens)
            out.count(files=1, bytes=shard.size, shards=1, samples=shard.samples)
            del tokens  # before the next one is read
        report(shard.size)
    if not held.shards:
        return stream
    if whole:
        stream.finish()
        out.count(tokens=stream.tokens, documents=stream.documents)
    _take_problems(stream, out)
    return stream if whole else None


def _take_problems(stream: StreamCheck, out: Outcome) -> None:
    for file, words in stream.problems:
        out.found(file, words)


def _packing_problems(record: PartRecord, split: Split) -> list[str]:
    """What is wrong with the list of shards, without looking at them."""
    form, length = record.spec.shard_format, record.spec.sequence_length
    held = record.splits[split]
    per_shard = form.samples_per_shard
    compression = Compression.parse(record.spec.compression)
    problems = []
    for number, shard in enumerate(held.shards):
        packed = "" if compression is None else f".{compression.codec}"
        names = [f"{name}{packed}" for name in form.shard_names(split, record.part, number)]
        if shard.name not in names:
            problems.append(f"shard {number} is named {shard.name!r}, expected {names[0]!r}")
            break
        if (shard.zip_bytes is None, shard.zip_hash is None) != (compression is None,) * 2:
            problems.append(f"shard {number} lacks the size or hash of its stored file")
            break
        if number < len(held.shards) - 1 and shard.samples != per_shard:
            problems.append(
                f"shard {number} has {shard.samples} samples, expected {per_shard} in all but "
                "the last"
            )
            break
    if held.padding >= length:
        problems.append(
            f"padding {held.padding}, expected less than {length}, the length of a sample"
        )
    if held.tokens < 2 * held.documents:
        problems.append(f"{held.tokens} tokens cannot be {held.documents} documents and their ends")
    return problems


def _compare(
    record: PartRecord,
    split: Split,
    *,
    recorded: _Counts,
    in_list: _Counts | None,
    stream: StreamCheck,
    out: Outcome,
) -> None:
    """Where three disagree, the one that the other two contradict is named."""
    in_shards = _Counts(stream.documents, stream.tokens)
    documents, held = documents_path(record.part), record.splits[split]
    if stream.unreadable is not None:
        out.found(documents, str(stream.unreadable))
    where, difference = stream.difference or ("", "")
    also = f"; {difference}" if difference else ""
    if recorded == in_shards:
        if in_list is not None and in_list != recorded:
            out.found(
                documents, f"lists {in_list} in {split}, shards and record have {recorded}{also}"
            )
        elif difference and not stream.problems:  # else the shards explain it
            out.found(documents, difference)
    elif in_list == recorded:
        shard = where or f"{split}/{held.shards[-1].name}"
        out.found(shard, f"{split} has {in_shards} here, record and list have {recorded}{also}")
    else:
        out.found(
            record_path(record.part), f"{split}: records {recorded}, its shards hold {in_shards}"
        )
        if in_list is not None and in_list != in_shards:
            out.found(documents, f"lists {in_list} in {split}, the shards hold {in_shards}{also}")
