"""Comparing a shuffled dataset with its sources: each holds documents of parts everywhere."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.dataset.layout import SPLITS
from streaming_ext.dataset.provenance import (
    KEPT_PREFIX,
    SHUFFLED_SCHEMA,
    DocumentRows,
    documents_limit,
    read_provenance,
)
from streaming_ext.dataset.record import PartRecord, PieceRecord
from streaming_ext.dataset.shuffled.source_table import SOURCES_PATH, Source
from streaming_ext.errors import (
    CorruptDatasetError,
    ShardmillError,
    StoppedError,
    StorageDownError,
    StorageError,
)
from streaming_ext.text.documents.kept_values import joined, nothing_less
from streaming_ext.text.sources.fetch import came_unchecked
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.reading.dataset_files import DatasetFiles
from tasks.core.reading.part_documents import PartDocuments, PieceHere
from tasks.core.verify.deep import Chosen, choose, compare_ids, size_of, source_here
from tasks.core.verify.duplicates import duplicates_of
from tasks.core.verify.findings import Outcome
from tasks.core.verify.rows import compare_rows


def verify_shuffled_sources(
    records: Mapping[int, PartRecord],
    sources: Sequence[Source],
    files: DatasetFiles,
    tokenizer: Tokenizer,
    *,
    chosen: Mapping[int, int],
    seed: int,
    report: Callable[[int], None],
) -> Outcome:
    """Read the sources of some documents again and compare all that the dataset has of them.

    Memory goes with the documents of those sources.

    Args:
        records: of the parts, each of whose lists of documents is sound.
        sources: by number.
        files: of the dataset.
        tokenizer: the reference.
        chosen: documents to tokenize again of each part.
        seed: decides which documents those are.
        report: called with the bytes of each source that is done; what it raises ends the check.

    Raises:
        StoppedError: `report` said so.
    """
    out = Outcome()
    wanted: dict[int, list[Chosen]] = {}
    try:
        for part, count in chosen.items():
            wanted[part] = choose(records[part], _provenance(files, records[part]), count, seed)
        numbers = sorted({one.source for found in wanted.values() for one in found})
        rows = _rows_of(numbers, records, files)
        left_out = _left_out(numbers, records, files)
    except (CorruptDatasetError, StorageError) as error:
        if isinstance(error, StorageDownError):
            raise
        out.found(SOURCES_PATH, f"documents cannot be told by source: {error}")
        return out
    texts: dict[tuple[int, int], str] = {}
    for number in numbers:
        report(0)
        rows_wanted = {
            one.row for found in wanted.values() for one in found if one.source == number
        }
        template = next(iter(records.values()))
        found = _compare_source(
            template, sources[number], rows[number], tokenizer,
            left_out=left_out[number],
            wanted=rows_wanted, report=report, out=out,
        )  # fmt: skip
        texts |= {(number, row): text for row, text in found.items()}
    for part, documents in wanted.items():
        own = {
            index: texts[one.source, one.row]
            for index, one in enumerate(documents)
            if (one.source, one.row) in texts
        }
        numbered = [replace(one, row=index) for index, one in enumerate(documents)]
        named = [f"row {one.row} of {sources[one.source].identity.url}" for one in documents]
        compare_ids(
            records[part], files, tokenizer,
            chosen=numbered, texts=own, name=named.__getitem__, out=out,
        )  # fmt: skip
    return out


def _provenance(files: DatasetFiles, record: PartRecord) -> bytes:
    return files.read(
        record.documents, limit=documents_limit(record.rows, len(record.spec.keep_columns))
    )


def _rows_of(
    numbers: Sequence[int], records: Mapping[int, PartRecord], files: DatasetFiles
) -> dict[int, list[DocumentRows]]:
    """All documents of some sources, as they are found part by part."""
    found: dict[int, list[DocumentRows]] = {number: [] for number in numbers}
    for record in records.values():
        for batch in read_provenance(_provenance(files, record)):
            assert batch.sources is not None  # noqa: S101  (the order of them was checked)
            assert batch.places is not None  # noqa: S101
            for number in np.intersect1d(batch.sources, numbers).tolist():
                own = batch.sources == number
                found[number].append(
                    DocumentRows(
                        batch.rows[own], batch.splits[own], batch.tokens[own],
                        batch.sources[own], batch.places[own],
                        {name: nothing_less(column.filter(pa.array(own)))
                         for name, column in batch.values.items()},
                    )
                )  # fmt: skip
    return found


def _left_out(
    numbers: Sequence[int], records: Mapping[int, PartRecord], files: DatasetFiles
) -> dict[int, npt.NDArray[np.int64]]:
    """Rows of some sources that were left out as copies, ascending."""
    found = {number: [np.empty(0, np.int64)] for number in numbers}
    for record in records.values():
        for copies in duplicates_of(record, files):
            for number in np.intersect1d(copies.groups, numbers).tolist():
                found[number].append(copies.rows[copies.groups == number])
    return {number: np.sort(np.concatenate(pieces)) for number, pieces in found.items()}


def _compare_source(
    record: PartRecord,
    source: Source,
    rows: Sequence[DocumentRows],
    tokenizer: Tokenizer,
    *,
    left_out: npt.NDArray[np.int64],
    wanted: set[int],
    report: Callable[[int], None],
    out: Outcome,
) -> dict[int, str]:
    """Compare one source with what the dataset has of it; returns the texts of the wanted rows."""
    url = source.identity.url
    piece = PieceRecord(source=source.identity, span=source.span, rows=source.rows)
    options = record.spec.read_options
    with tempfile.TemporaryDirectory(prefix="shardmill-verify-") as folder:
        try:
            whole = piece.model_copy(update={"span": None})
            local = source_here(whole, Path(folder), options)
            if came_unchecked(local):
                out.unchecked.add(url)
            here = PieceHere(url, local, source.span, size_of(piece))
            of_source = record.model_copy(
                update={
                    "source": source.identity,
                    "pieces": (piece,) if source.span else (),
                    "rows": source.rows,
                }
            )
            return compare_rows(
                of_source,
                PartDocuments([here], options),
                _as_file(rows),
                tokenizer,
                wanted=wanted,
                go_on=lambda: report(0),
                out=out,
                shuffled=True,
                left_out=left_out,
            )
        except (StoppedError, StorageDownError):
            raise
        except (ShardmillError, OSError) as error:
            out.found(url, str(error).removeprefix(f"{url}: "))
            return {}
        finally:
            report(size_of(piece))


def _as_file(rows: Sequence[DocumentRows]) -> bytes:
    """The documents of a source in the order of their rows, as the list of a part would be."""
    own, splits, tokens, sources, places = (
        np.concatenate([getattr(piece, name) for piece in rows])
        for name in ("rows", "splits", "tokens", "sources", "places")
    )
    order = np.argsort(own)
    names = np.array(SPLITS, dtype=object)[splits[order]]
    table = pa.table(
        [sources[order].astype(np.int32), places[order], own[order], pa.array(names, pa.string()),
         tokens[order].astype(np.uint32)],
        schema=SHUFFLED_SCHEMA,
    )  # fmt: skip
    for name in rows[0].values:
        values = joined(name, [piece.values[name] for piece in rows]).take(pa.array(order))
        kind = pa.large_string() if pa.types.is_null(values.type) else values.type
        table = table.append_column(f"{KEPT_PREFIX}{name}", values.cast(kind))
    file = pa.BufferOutputStream()
    pq.write_table(table, file)
    data: bytes = file.getvalue().to_pybytes()
    return data
