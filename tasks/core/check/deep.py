"""Making documents again from their sources, and comparing: all rows of a source, some ids."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.dataset.layout import (
    DOCUMENTS_FOLDER,
    DUPLICATES_FOLDER,
    SPLITS,
    documents_path,
    record_path,
)
from streaming_ext.dataset.provenance import KEPT_PREFIX
from streaming_ext.dataset.record import PartRecord, PieceRecord
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import CorruptDatasetError
from streaming_ext.text.documents.kept_values import differing
from streaming_ext.text.documents.source_format import DocumentBatch
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.fetch import came_unchecked, fetch
from streaming_ext.text.fetch_piece import fetch_piece
from streaming_ext.text.identity import identify
from streaming_ext.text.listing import listed_again
from streaming_ext.text.sources import SourceFile, is_remote
from streaming_ext.text.token_sets.id_documents import IdsReference
from streaming_ext.text.tokenizer.engine import Encoded
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.check.copies import ALL_BITS, FirstCopies, codes, shown, summed
from tasks.core.check.findings import Outcome, Progress
from tasks.core.check.manifest import Opened, differences
from tasks.core.check.sample import Sampled
from tasks.core.imports.sources import list_token_files
from tasks.core.reading.lists import documents_of, duplicates_of
from tasks.core.reading.part_documents import PartDocuments, PieceHere
from tasks.core.workers.sinks import Tokens
from tasks.core.workers.tokenize_part import Counts, tokenize_batches

Ints = npt.NDArray[np.int64]
_MOST_ROWS = 2**22  # of sources whose documents are looked up together
_MOST_TOKENIZED = 200  # texts of a group of which no document was made, tokenized again


class Encodes(Protocol):
    """Gives the ids of a document: of its text, or of bytes that are its ids."""

    def encode(self, text: Any, /) -> list[int]:
        """Its ids, without an end-of-text id."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """What is read again as one: a part, or a source of a shuffled dataset.

    Attributes:
        number: of the part, or of the source.
        spec: that it was made with.
        pieces: of source files.
        rows: of them all, as recorded.
        record: of the part; None for a source.
        file: that findings about its documents name.
        counted_in: the file that says how many rows it has.
    """

    number: int
    spec: DatasetSpec
    pieces: tuple[PieceRecord, ...]
    rows: int
    record: PartRecord | None
    file: str
    counted_in: str

    @property
    def size(self) -> int:
        """Bytes that are read of its sources."""
        spans = [piece.span or (0, piece.source.size) for piece in self.pieces]
        return sum(end - begin for begin, end in spans)


def compare_with_sources(
    dataset: Opened,
    tokenizer: Tokenizer,
    sampled: Sequence[Sampled],
    firsts: FirstCopies | None,
    out: Outcome,
    *,
    progress: Progress,
    workers: int,
) -> int:
    """Read sources again and compare all rows of them, and the ids of some documents.

    Of a dataset without copies all sources are read, else those of the sampled documents. Memory
    goes with the documents of one part, or of some sources of a shuffled dataset.

    Args:
        dataset: whose lists of documents are sound.
        tokenizer: the reference.
        sampled: documents whose ids are compared.
        firsts: first copies, where some were left out.
        out: gets the findings.
        progress: gets the bytes of sources.
        workers: threads.

    Returns:
        One number for the hashes of all texts that stayed, where copies were left out.
    """
    deduplicated = any(record.spec.deduplicate for record in dataset.records.values())
    of_group: dict[int, list[Sampled]] = {}
    for one in sampled:
        of_group.setdefault(one.group, []).append(one)
    groups = [each for each in _groups(dataset) if deduplicated or each.number in of_group]
    progress.expect(sum(group.size for group in groups))

    def compare(window: Sequence[Group]) -> tuple[int, Outcome]:
        found, hashes = Outcome(), 0
        with found.about(DOCUMENTS_FOLDER):
            for group, listed in _listed(window, dataset):
                own = {one.row: one for one in of_group.get(group.number, ())}
                with found.about(*(piece.source.url for piece in group.pieces)):
                    again = _MadeAgain(group, listed, own, tokenizer, firsts=firsts, out=found)
                    hashes += again.compare(progress)
                progress.done(group.size)
        return hashes, found

    hashes = 0
    with ThreadPoolExecutor(workers) as threads, progress:
        for added, found in threads.map(compare, _windows(groups)):
            hashes += added
            out.take(found)
    return int(hashes & ALL_BITS)


def _groups(dataset: Opened) -> Iterator[Group]:
    if dataset.manifest is None or dataset.manifest.shuffled is None:
        for part, record in dataset.records.items():
            yield Group(
                number=part,
                spec=record.spec,
                pieces=record.made_of,
                rows=record.rows,
                record=record,
                file=documents_path(part),
                counted_in=record_path(part),
            )
        return
    for number, source in enumerate(dataset.sources):
        yield Group(
            number=number,
            spec=dataset.manifest.spec,
            pieces=(PieceRecord(source=source.identity, span=source.span, rows=source.rows),),
            rows=source.rows,
            record=None,
            file=source.identity.url,
            counted_in=dataset.manifest.shuffled.sources.path,
        )


def _windows(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Each part by itself, sources some at a time."""
    window: list[Group] = []
    for group in groups:
        window.append(group)
        if group.record is not None or sum(each.rows for each in window) >= _MOST_ROWS:
            yield window
            window = []
    if window:
        yield window


def _listed(window: Sequence[Group], dataset: Opened) -> Iterator[tuple[Group, pa.Table]]:
    """What the dataset lists of each group, by row; copies are of no split, and name a `first`."""
    files, record = dataset.files, window[0].record
    numbers = pa.array([group.number for group in window])
    tables = []
    for part in dataset.records.values() if record is None else [record]:
        listed, copies = documents_of(files, part, values=True), duplicates_of(files, part)
        firsts = codes(copies.first_groups, copies.first_rows)
        left_out = {"row": copies.rows, "tokens": copies.tokens, "source": copies.groups}
        both = [listed, pa.table({**left_out, "first": firsts})]
        whole = pa.concat_tables(both, promote_options="permissive")
        tables.append(whole.filter(pc.is_in(whole["source"], numbers)))
    whole = pa.concat_tables(tables, promote_options="permissive")
    for group in window:
        yield group, whole.filter(pc.equal(whole["source"], group.number)).sort_by("row")


class _Documents(PartDocuments):
    """Documents of which the batch in hand is known."""

    batch: DocumentBatch

    def batches(self) -> Iterator[DocumentBatch]:
        """See `PartDocuments.batches`."""
        for self.batch in super().batches():
            yield self.batch


class _MadeAgain:
    """A group made again by what makes parts, beside what the dataset lists of it.

    It is the engine, which tokenizes some documents and takes for others the length that is listed,
    and the sink, which compares.
    """

    name = reason = "verify"

    def __init__(
        self,
        group: Group,
        listed: pa.Table,
        sampled: Mapping[int, Sampled],
        tokenizer: Tokenizer,
        *,
        firsts: FirstCopies | None,
        out: Outcome,
    ) -> None:
        self._group, self._listed, self._sampled = group, listed, sampled
        self._rows, self._tokens = listed["row"].to_numpy(), listed["tokens"].to_numpy()
        self._tokenizer, self._firsts, self._out = tokenizer, firsts, out
        self._reference: Encodes = IdsReference() if group.spec.imported else tokenizer
        self._seen = self._looked_at = self._passed_over = self._bytes_left_out = 0
        self._new = self._hashes = 0

    def compare(self, progress: Progress) -> int:
        """Go over all rows; returns one number for the hashes of the texts that stayed.

        Raises:
            ShardmillError, OSError: a source is gone, another one, damaged or cannot be read.
        """
        group, spec = self._group, self._group.spec
        with tempfile.TemporaryDirectory(prefix="shardmill-verify-") as folder:
            here = [self._here(piece, Path(folder)) for piece in group.pieces]
            self._documents = _Documents(here, spec.read_options)
            counts = tokenize_batches(
                self._documents,
                spec,
                self._tokenizer,
                self,
                self,
                where=group.file,
                report=lambda _: progress.done(0),
                audited=False,
            )
            self._out.unchecked.update(each.url for each in here if came_unchecked(each.path))
        self._out.sources.update(piece.url for piece in here)
        self._out.count(source_rows=counts.rows)
        for piece, found in zip(group.pieces, self._documents.rows, strict=True):
            if piece.rows != found:
                words = f"{piece.rows} rows of {piece.source.url}, it has {found}"
                self._out.found(group.counted_in, words)
        if group.record is not None:
            self._compare_counts(group.record, counts)
        return self._hashes

    def encode(self, texts: pa.Array) -> Encoded:
        """Ids, or as many as there are to be: of what is not listed, of the first few alone."""
        rows = self._documents.batch.rows
        lengths, listed = np.zeros(len(rows), np.int64), np.isin(rows, self._rows)
        lengths[listed] = self._tokens[np.searchsorted(self._rows, rows[listed])]
        for index in np.flatnonzero(~listed | np.isin(rows, [*self._sampled])).tolist():
            size = len(texts[index].as_buffer() or b"")
            if not listed[index] and size and self._looked_at == _MOST_TOKENIZED:
                self._passed_over += 1
                self._bytes_left_out += size
            elif size:
                ids = self._reference.encode(texts[index].as_py())
                lengths[index] = len(ids)
                if listed[index]:
                    self._compare_ids(self._sampled[int(rows[index])], ids)
                else:
                    self._looked_at += 1
        any_id = int(self._group.spec.tokenizer.eot_id == 0)
        offsets = np.append(0, np.cumsum(lengths))
        return Encoded(np.full(offsets[-1], any_id, np.uint32), offsets)

    def add(self, tokens: Tokens) -> None:
        """Compare some documents with the list."""
        batch = tokens.batch
        rows = batch.rows[tokens.kept]
        begin, end = np.searchsorted(self._rows, [self._seen, self._seen + batch.num_rows])
        self._seen += batch.num_rows
        there = np.isin(self._rows[begin:end], rows)
        for row in self._rows[begin:end][~there]:
            self._found("gone", row, "is listed, and its source has no text for it")
        new = rows[~np.isin(rows, self._rows[begin:end])]
        self._new += len(new)
        for row in new if self._group.spec.subset is None else ():
            self._found("lost", row, "is not listed, but it has a text that gives tokens")
        listed = self._listed.slice(begin, end - begin).filter(pa.array(there))
        # at: (listed documents,), their places among those that were made again
        at = np.searchsorted(rows, listed["row"].to_numpy())
        copies = np.asarray(listed["first"].is_valid())
        self._compare(tokens, listed.filter(pa.array(~copies)), at[~copies])
        if self._firsts is not None and tokens.digests is not None:
            hashes = tokens.digests[tokens.kept]
            own = np.full(len(at) - copies.sum(), self._group.number), rows[at[~copies]]
            self._hashes += summed(*own, hashes[at[~copies]])
            firsts = listed["first"].to_numpy()[copies].astype(np.int64)
            wrong = (self._firsts.hashes_of(firsts) != hashes[at[copies]]).any(axis=1)
            for index in np.flatnonzero(wrong):
                words = f"is no copy of {shown(int(firsts[index]))} by their texts"
                self._found("copy", rows[at[copies]][index], words, file=DUPLICATES_FOLDER)
            self._out.count(compared=len(at))
        sizes = np.diff(text_buffers(batch.texts)[1])[tokens.kept]
        self._bytes_left_out += int(sizes[at[copies]].sum())

    def _compare(self, tokens: Tokens, listed: pa.Table, at: Ints) -> None:
        """Compare listed documents, which stand `at` these places of what was made again."""
        spec, rows, splits = self._group.spec, listed["row"].to_numpy(), listed["split"].to_numpy()
        held = tokens.in_holdout[at].astype(np.int8)
        for index in np.flatnonzero(splits != held):
            stands, belongs = SPLITS[int(splits[index])], SPLITS[held[index]]
            words = f"stands in {stands}; the hash of its text puts it into {belongs}"
            self._found("side", rows[index], words)
        if spec.shuffle is not None:
            names = tokens.batch.named_by[tokens.kept][at]
            for index in np.flatnonzero(listed["place"].to_numpy() != names):
                self._found("name", rows[index], "is not named as in its source")
        for name, column in zip(spec.keep_columns, tokens.values, strict=True) if len(at) else ():
            kept, made = listed[f"{KEPT_PREFIX}{name}"].combine_chunks(), column.take(pa.array(at))
            for index in differing(kept, made):
                words = (
                    f"has {kept[index].as_py()!r} in {name!r}, its source {made[index].as_py()!r}"
                )
                self._found(name, rows[index], words)

    def _compare_ids(self, one: Sampled, made: list[int]) -> None:
        """Compare what the reference makes of a document with the ids in the shards."""
        ids = np.concatenate([np.empty(0, np.uint32), *one.ids])
        if len(ids) != one.tokens + 1:
            return  # a shard is damaged, which is a finding already
        expected = np.array([*made, self._group.spec.tokenizer.eot_id], np.uint32)
        self._out.count(retokenized=1, retokenized_tokens=len(expected))
        common = min(len(ids), len(expected))
        different = np.flatnonzero(ids[:common] != expected[:common])
        if len(expected) != len(ids):
            words = f"is listed with {one.tokens} tokens, the reference makes {len(made)}"
            self._found("length", one.row, words, file=documents_path(one.part))
        if len(different):
            few = slice(int(different[0]), int(different[0]) + 5)
            words = f"has other ids from {few.start} on: {ids[few].tolist()}, the reference makes "
            self._found("ids", one.row, f"{words}{expected[few].tolist()}", file=one.shard)

    def _compare_counts(self, record: PartRecord, made: Counts) -> None:
        """Compare what a record counts with what was made again."""
        subset = record.spec.subset is not None
        counts = {
            "rows": made.rows,
            "null_documents": made.nulls,
            "bad_documents": made.bad,
            "bad_listed": tuple(made.bad_listed),
        }
        if not subset:
            counts["text_bytes"] = made.text_bytes - self._bytes_left_out
        if not self._passed_over:  # else the sum of these is known, which the record agrees with
            counts["empty_documents"] = made.empty + (0 if subset else self._new)
            counts["unchosen_documents"] = self._new if subset else 0
            counts["dropped_documents"] = {n: made.dropped[n] for n in record.dropped_documents}
        if words := differences(record, record.model_copy(update=counts)):
            self._out.found(self._group.counted_in, words)

    def _found(self, kind: str, row: int, words: str, *, file: str = "") -> None:
        self._out.found(file or self._group.file, f"row {row} {words}", kind=kind)

    def _here(self, piece: PieceRecord, folder: Path) -> PieceHere:
        """The bytes that a piece was made from; remote ones are fetched."""
        source, options = piece.source, self._group.spec.read_options
        span = (
            piece.span if self._group.spec.shuffle is None else None
        )  # else all of a file is pinned
        path = Path(source.url)
        if not is_remote(source.url):
            now = SourceFile(url=source.url, size=path.stat().st_size)
        elif options.ids is None:
            now = listed_again(source)
        else:
            (now,) = list_token_files([source.url], options.ids)
        version = now.pin or identify(now, path, span=span, options=options).version
        if (now.size, version) != (source.size, source.version):
            raise CorruptDatasetError(
                f"{source.url}: {now.size} bytes of {version}, the dataset was made from "
                f"{source.size} of {source.version}"
            )
        if now.remote and span is None:
            path = fetch(now, folder)[0]
        elif now.remote and span is not None:
            path = fetch_piece(now, folder, options=options, span=span)[0]
        return PieceHere(source.url, path, piece.span, source.size)
