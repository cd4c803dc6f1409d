"""Comparing the rows of a source with a part: holdout sides, rows without text, and counts."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.dataset.layout import SPLITS, documents_path, record_path
from streaming_ext.dataset.provenance import DocumentRows, read_provenance
from streaming_ext.dataset.record import MOST_BAD_LISTED, BadDocument, PartRecord
from streaming_ext.dataset.shuffled.source_table import SOURCES_PATH
from streaming_ext.text.documents.kept_values import differing, joined, nothing_less
from streaming_ext.text.documents.source_format import DocumentBatch
from streaming_ext.text.documents.text_array import num_text_bytes, text_buffers
from streaming_ext.text.filters.filters import BY_TEXT, FilterName
from streaming_ext.text.holdout import document_hashes, held_out
from streaming_ext.text.normal_form import compared_texts
from tasks.core.reading.part_documents import PartDocuments
from tasks.core.verify.findings import Outcome

_MAX_EMPTY_BYTES = 2**20  # of a text that is said to give no token
_MOST_TOKENIZED = 200  # texts of a part that a filter of tokens dropped, tokenized again
_MAX_OF_A_KIND = 3  # findings about rows, a part


class Encodes(Protocol):
    """Gives the ids of a document: of its text, or of bytes that are its ids."""

    def encode(self, text: Any, /) -> list[int]:
        """Its ids, without an end-of-text id."""
        ...


def compare_rows(
    record: PartRecord,
    documents: PartDocuments,
    provenance: bytes,
    tokenizer: Encodes,
    *,
    wanted: set[int],
    go_on: Callable[[], None],
    out: Outcome,
    shuffled: bool = False,
    left_out: npt.NDArray[np.int64] | None = None,
) -> dict[int, Any]:
    """Go over source and provenance side by side; returns the texts of the wanted rows.

    Args:
        documents: of its pieces.
        provenance: known to list ascending rows.
        go_on: called now and then; what it raises ends the check.
        shuffled: the record stands for one source of a shuffled dataset: of that only the rows
            are counted, and the list tells what names each document.
        left_out: rows that were left out as copies, ascending.

    Raises:
        SourceError: the source is damaged.
    """
    listed = _Rows(read_provenance(provenance))
    findings = _Limited(record.source.url if shuffled else documents_path(record.part), out)
    texts: dict[int, Any] = {}
    rows = nulls = text_bytes = bad = 0
    absent_texts = _Absent(record, documents, tokenizer, findings)
    dropped: Counter[FilterName] = Counter()
    bad_listed: list[BadDocument] = []
    for batch in documents.batches():
        go_on()
        expected = held_out(
            document_hashes(
                compared_texts(batch.texts, record.spec.deduplicate, record.spec.unicode),
                seed=record.spec.holdout_seed,
            ),
            fraction=record.spec.holdout_fraction,
        )
        ours = listed.before(rows + batch.num_rows)
        # positions: (listed documents of the batch,), in the batch's texts; nulls are not in it
        positions = np.searchsorted(batch.rows, ours.rows)
        there = np.zeros(len(positions), bool)
        inside = positions < len(batch.rows)
        there[inside] = batch.rows[positions[inside]] == ours.rows[inside]
        for row in ours.rows[~there][:_MAX_OF_A_KIND]:
            url, place = documents.place(int(row))
            findings.add("null", f"lists row {row}, which is null: {place} of {url}")
        _check_places(ours, there, batch.named_by[positions[there]], findings)
        _check_sides(ours, there, expected[positions[there]], findings)
        _check_values(ours, there, batch, positions[there], names=record.spec.keep_columns,
                      findings=findings)  # fmt: skip
        absent = np.ones(len(batch.rows), bool)
        absent[positions[there]] = False
        if left_out is not None:
            copies = np.isin(batch.rows, left_out) & absent
            text_bytes -= int(np.diff(text_buffers(batch.texts)[1])[copies].sum())
            absent &= ~copies
        absent_texts.check(batch, np.flatnonzero(absent))
        dropped.update(batch.dropped)
        for row in wanted.intersection(ours.rows[there].tolist()):
            texts[row] = batch.texts[int(np.searchsorted(batch.rows, row))].as_py()
        rows += batch.num_rows
        nulls += batch.nulls
        bad += len(batch.bad)
        bad_listed += documents.bad_of(batch)[: MOST_BAD_LISTED - len(bad_listed)]
        text_bytes += num_text_bytes(batch.texts)
    text_bytes -= absent_texts.dropped_bytes
    out.count(source_rows=rows)
    out.sources.update(piece.source.url for piece in record.made_of)
    for piece, found in zip(record.made_of, documents.rows, strict=True):
        if piece.rows != found and record.pieces:
            out.found(
                record_path(record.part),
                f"{piece.rows} rows of {piece.source.url}, it has {found}",
            )
    if shuffled:
        if record.rows != rows:
            url = record.source.url
            out.found(SOURCES_PATH, f"{record.rows} rows of {url}, it has {rows}")
        return texts
    counts = {
        "rows": (record.rows, rows),
        "null_documents": (record.null_documents, nulls),
        "bad_documents": (record.bad_documents, bad),
        **({"text_bytes": (record.text_bytes, text_bytes)} if record.spec.subset is None else {}),
        **{
            f"dropped by {name}": (record.dropped_documents.get(name, 0), dropped[name])
            for name in BY_TEXT
        },
        **absent_texts.counts(),
    }
    for name, (recorded, found) in counts.items():
        if recorded != found:
            out.found(record_path(record.part), f"{name} {recorded}, the source has {found}")
    if record.bad_listed != tuple(bad_listed):
        out.found(record_path(record.part), "lists other bad documents than the source has")
    return texts


def _check_places(
    ours: DocumentRows,
    there: npt.NDArray[np.bool_],
    expected: npt.NDArray[np.int64],
    findings: "_Limited",
) -> None:
    if ours.places is None:
        return
    listed = ours.places[there]
    for index in np.flatnonzero(listed != expected)[:_MAX_OF_A_KIND]:
        findings.add(
            "place",
            f"row {int(ours.rows[there][index])} is named by {int(listed[index])}, in its source "
            f"by {int(expected[index])}",
        )


def _check_sides(
    ours: DocumentRows,
    there: npt.NDArray[np.bool_],
    expected: npt.NDArray[np.bool_],
    findings: "_Limited",
) -> None:
    held = ours.of("holdout")[there]
    for index in np.flatnonzero(held != expected)[:_MAX_OF_A_KIND]:
        stands, belongs = SPLITS[int(held[index])], SPLITS[int(expected[index])]
        findings.add(
            "side",
            f"row {int(ours.rows[there][index])} stands in {stands}; the hash of its text puts it "
            f"into {belongs}",
        )


def _check_values(
    ours: DocumentRows,
    there: npt.NDArray[np.bool_],
    batch: DocumentBatch,
    positions: npt.NDArray[np.int64],
    *,
    names: Sequence[str],
    findings: "_Limited",
) -> None:
    """Compare what was kept of columns with what the source holds."""
    if not there.any():
        return
    at = pa.array(positions)
    for name, column in zip(names, batch.values, strict=True):
        listed = ours.values[name].filter(pa.array(there))
        expected = column.take(at)
        differs = differing(listed, expected)
        for index in differs[:_MAX_OF_A_KIND]:
            row = int(ours.rows[there][index])
            findings.add(
                f"value of {name}",
                f"row {row} has {listed[index].as_py()!r} in {name!r}, its source "
                f"{expected[index].as_py()!r}",
            )


class _Absent:
    """Texts of which no document was made: without a token, or dropped by a filter of tokens."""

    def __init__(
        self,
        record: PartRecord,
        documents: PartDocuments,
        tokenizer: Encodes,
        findings: "_Limited",
    ) -> None:
        self._record, self._documents = record, documents
        self._tokenizer, self._findings = tokenizer, findings
        self._filters = record.spec.filters
        self._of_subset = record.spec.subset is not None
        self._by_tokens = not {"min_tokens", "max_tokens"}.isdisjoint(self._filters.given())
        self._found: Counter[str] = Counter()
        self.dropped_bytes = 0  # of texts that filters of tokens dropped

    def check(self, batch: DocumentBatch, absent: npt.NDArray[np.int64]) -> None:
        """Look at those of a batch, by their positions in it."""
        for index in absent:
            text = batch.texts[int(index)]
            size = len(text.as_buffer() or b"")
            looked_at = self._found.total() - self._found["unknown"]
            if (self._by_tokens or self._of_subset) and looked_at >= _MOST_TOKENIZED:
                self._found["unknown"] += 1
                self.dropped_bytes += size
                continue
            if size > _MAX_EMPTY_BYTES and not self._by_tokens:
                tokens = 1  # or more
            else:
                tokens = len(self._tokenizer.encode(text.as_py())) if size else 0
            reasons: list[str] = [
                name
                for name, dropped in self._filters.by_tokens(np.array([tokens])).items()
                if dropped[0]
            ]
            if tokens and not reasons and self._of_subset:
                reasons = ["unchosen_documents"]
            if tokens and not reasons:
                self._findings.add(
                    "lost", f"row {int(batch.rows[index])} is not listed, but it has {size} bytes "
                    "of text that give tokens"
                )  # fmt: skip
            self.dropped_bytes += size if reasons else 0
            self._found[reasons[0] if reasons else "empty_documents"] += 1

    def counts(self) -> dict[str, tuple[int, int]]:
        """What the record says and what was found, by name; together where not all were read."""
        recorded = {"empty_documents": self._record.empty_documents} | {
            name: count
            for name, count in self._record.dropped_documents.items()
            if name not in BY_TEXT
        }
        if self._of_subset:
            recorded["unchosen_documents"] = self._record.unchosen_documents
        if self._found["unknown"]:
            names = " and ".join(recorded)
            return {names: (sum(recorded.values()), self._found.total())}
        return {name: (count, self._found[name]) for name, count in recorded.items()}


class _Rows:
    """The documents of a part, handed out by row."""

    def __init__(self, batches: Iterator[DocumentRows]) -> None:
        self._batches = batches
        self._rest = _slice(None, 0, 0)

    def before(self, row: int) -> DocumentRows:
        """All documents not handed out yet that stand before `row` of the source."""
        pieces = []
        while True:
            count = int(np.searchsorted(self._rest.rows, row))
            pieces.append(_slice(self._rest, 0, count))
            self._rest = _slice(self._rest, count, len(self._rest.rows))
            if len(self._rest.rows):
                break
            batch = next(self._batches, None)
            if batch is None:
                break
            self._rest = batch
        places = [piece.places for piece in pieces if piece.places is not None]
        return DocumentRows(
            np.concatenate([piece.rows for piece in pieces]),
            np.concatenate([piece.splits for piece in pieces]),
            np.concatenate([piece.tokens for piece in pieces]),
            places=np.concatenate(places) if places else None,
            values={
                name: joined(name, [nothing_less(piece.values[name]) for piece in pieces
                                    if name in piece.values])
                for name in dict.fromkeys(name for piece in pieces for name in piece.values)
            },
        )  # fmt: skip


def _slice(rows: DocumentRows | None, start: int, end: int) -> DocumentRows:
    if rows is None:
        return DocumentRows(np.empty(0, np.int64), np.empty(0, np.int8), np.empty(0, np.int64))
    places = None if rows.places is None else rows.places[start:end]
    return DocumentRows(
        rows.rows[start:end], rows.splits[start:end], rows.tokens[start:end], places=places,
        values={name: column.slice(start, end - start) for name, column in rows.values.items()},
    )  # fmt: skip


class _Limited:
    """Findings about one file, the first few of each kind."""

    def __init__(self, file: str, out: Outcome) -> None:
        self._file, self._out = file, out
        self._counts: dict[str, int] = {}

    def add(self, kind: str, problem: str) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if self._counts[kind] <= _MAX_OF_A_KIND:
            self._out.found(self._file, problem)
