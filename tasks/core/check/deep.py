"""Making documents again from their sources, and comparing: all rows of a source, some ids."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.dataset.deduplicated.duplicates import Duplicates
from streaming_ext.dataset.layout import (
    DOCUMENTS_FOLDER,
    DUPLICATES_FOLDER,
    SPLITS,
    documents_path,
    record_path,
)
from streaming_ext.dataset.provenance import KEPT_PREFIX
from streaming_ext.dataset.record import MOST_BAD_LISTED, BadDocument, PartRecord, PieceRecord
from streaming_ext.dataset.shuffled.keys import Keys
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import CorruptDatasetError
from streaming_ext.text.documents.kept_values import differing
from streaming_ext.text.documents.source_format import DocumentBatch
from streaming_ext.text.documents.text_array import num_text_bytes, text_buffers
from streaming_ext.text.holdout import document_hashes, held_out
from streaming_ext.text.normal_form import compared_texts
from streaming_ext.text.sources import SourceFile, identify, is_remote
from streaming_ext.text.sources.fetch import came_unchecked, fetch, listed_again
from streaming_ext.text.sources.fetch_piece import fetch_piece
from streaming_ext.text.text_digests import text_digests
from tasks.core.check.copies import ALL_BITS, Copies, codes, shown, summed
from tasks.core.check.findings import Outcome
from tasks.core.check.manifest import Opened
from tasks.core.check.progress import Progress
from tasks.core.check.sample import Sampled
from tasks.core.imports.sources import list_token_files
from tasks.core.reading.lists import documents_of, duplicates_of
from tasks.core.reading.part_documents import PartDocuments, PieceHere

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_MOST_ROWS = 2**22  # of sources whose documents are looked up together
_MOST_TOKENIZED = 200  # texts of a group of which no document was made, tokenized again
_TOLD_BY_TOKENS = ("empty_documents", "unchosen_documents", "min_tokens", "max_tokens")


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


class FirstCopies:
    """Hashes of the texts that first copies have, as they are read."""

    def __init__(self, firsts: Ints) -> None:
        """Know none.

        Args:
            firsts: of all parts, as `codes`, ascending: (firsts,).
        """
        self._firsts, self._hashes = firsts, np.zeros((len(firsts), 2), np.uint64)

    def note(self, own: Ints, hashes: Keys) -> None:
        """Documents, as `codes`: (documents,), and the hashes of their texts: (documents, 2)."""
        chosen = np.isin(own, self._firsts)
        self._hashes[np.searchsorted(self._firsts, own[chosen])] = hashes[chosen]

    def of(self, firsts: Ints) -> Keys:
        """The hashes of some: (copies, 2)."""
        return self._hashes[np.searchsorted(self._firsts, firsts)]


def compare_with_sources(
    dataset: Opened,
    tokenizer: Encodes,
    sampled: Sequence[Sampled],
    copies: Sequence[Copies],
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
        copies: what each part left out.
        out: gets the findings.
        progress: gets the bytes of sources.
        workers: threads; one where texts are compared with each other, which takes their order.

    Returns:
        One number for the hashes of all texts that stayed, where copies were left out.
    """
    deduplicated = any(record.spec.deduplicate for record in dataset.records.values())
    of_group: dict[int, list[Sampled]] = {}
    for one in sampled:
        of_group.setdefault(one.group, []).append(one)
    groups = [each for each in _groups(dataset) if deduplicated or each.number in of_group]
    progress.expect(sum(group.size for group in groups))
    none = np.empty(0, np.int64)
    firsts = FirstCopies(np.unique(np.concatenate([none, *(part.firsts for part in copies)])))

    def compare(window: Sequence[Group]) -> tuple[int, Outcome]:
        found, hashes = Outcome(), 0
        with found.about(DOCUMENTS_FOLDER):
            for group, listed, left_out in _listed(window, dataset):
                own = {one.row: one for one in of_group.get(group.number, ())}
                with found.about(*(piece.source.url for piece in group.pieces)):
                    rows = _Rows(
                        group,
                        listed,
                        left_out,
                        sampled=own,
                        tokenizer=tokenizer,
                        firsts=firsts,
                        out=found,
                    )
                    hashes += rows.compare(progress)
                progress.done(group.size)
        return hashes, found

    hashes = 0
    with ThreadPoolExecutor(1 if deduplicated else workers) as threads, progress:
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


def _listed(
    window: Sequence[Group], dataset: Opened
) -> Iterator[tuple[Group, pa.Table, Duplicates]]:
    """What the dataset lists of each group, by row: documents, and what was left out as copies."""
    files, record = dataset.files, window[0].record
    if record is not None:
        yield window[0], documents_of(files, record, values=True), duplicates_of(files, record)
        return
    numbers = [group.number for group in window]
    pieces, copies = [], []
    for part in dataset.records.values():
        listed, left_out = documents_of(files, part, values=True), duplicates_of(files, part)
        pieces.append(listed.filter(pc.is_in(listed["source"], pa.array(numbers))))
        copies.append(left_out.chosen(np.isin(left_out.groups, numbers)))
    whole, left_out = (
        pa.concat_tables(pieces, promote_options="permissive"),
        Duplicates.joined(copies),
    )
    for group in window:
        listed = whole.filter(pc.equal(whole["source"], group.number)).sort_by("row")
        own = left_out.chosen(left_out.groups == group.number)
        yield group, listed, own.chosen(np.argsort(own.rows))


class _Rows:
    """The rows of a group beside what the dataset lists of them."""

    def __init__(
        self,
        group: Group,
        listed: pa.Table,
        left_out: Duplicates,
        *,
        sampled: Mapping[int, Sampled],
        tokenizer: Encodes,
        firsts: FirstCopies,
        out: Outcome,
    ) -> None:
        self._group, self._listed, self._left_out = group, listed, left_out
        self._rows = listed["row"].to_numpy()
        self._sampled, self._tokenizer, self._out = sampled, tokenizer, out
        self._firsts, self._spec = firsts, group.spec
        self._counts: Counter[str] = Counter()
        self._bad: list[BadDocument] = []

    def compare(self, progress: Progress) -> int:
        """Go over all rows; returns one number for the hashes of the texts that stayed.

        Raises:
            ShardmillError, OSError: a source is gone, another one, damaged or cannot be read.
        """
        hashes, options = 0, self._spec.read_options
        with tempfile.TemporaryDirectory(prefix="shardmill-verify-") as folder:
            here = [self._here(piece, Path(folder)) for piece in self._group.pieces]
            documents = PartDocuments(here, options)
            for batch in documents.batches():
                progress.done(0)
                hashes += self._compare(batch)
                self._bad += documents.bad_of(batch)
        self._out.sources.update(piece.url for piece in here)
        self._out.unchecked.update(piece.url for piece in here if came_unchecked(piece.path))
        self._out.count(source_rows=self._counts["rows"])
        for piece, found in zip(self._group.pieces, documents.rows, strict=True):
            if piece.rows != found:
                words = f"{piece.rows} rows of {piece.source.url}, it has {found}"
                self._out.found(self._group.counted_in, words)
        if self._group.record is not None:
            self._compare_counts(self._group.record)
        return hashes

    def _here(self, piece: PieceRecord, folder: Path) -> PieceHere:
        """The bytes that a piece was made from; remote ones are fetched."""
        source, options = piece.source, self._spec.read_options
        span = piece.span if self._spec.shuffle is None else None  # else all of a file is pinned
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

    def _compare(self, batch: DocumentBatch) -> int:
        spec, before = self._spec, self._counts["rows"]
        self._counts.update(
            rows=batch.num_rows,
            null_documents=batch.nulls,
            bad_documents=len(batch.bad),
            text_bytes=num_text_bytes(batch.texts),
        )
        self._counts.update(batch.dropped)
        compared = compared_texts(batch.texts, spec.deduplicate, spec.unicode)
        in_holdout = held_out(
            document_hashes(compared, seed=spec.holdout_seed), fraction=spec.holdout_fraction
        )
        begin, end = np.searchsorted(self._rows, [before, self._counts["rows"]])
        ours = self._listed.slice(begin, end - begin)
        there = np.isin(self._rows[begin:end], batch.rows)
        for row in self._rows[begin:end][~there]:
            self._found("gone", row, "is listed, and is no text in its source")
        ours = ours.filter(pa.array(there))
        rows, held = ours["row"].to_numpy(), ours["split"].to_numpy()
        # at: (documents of the batch that are listed,), their positions in it
        at = np.searchsorted(batch.rows, rows)
        for index in np.flatnonzero(held != in_holdout[at]):
            stands, belongs = SPLITS[held[index]], SPLITS[int(in_holdout[at[index]])]
            words = f"stands in {stands}; the hash of its text puts it into {belongs}"
            self._found("side", rows[index], words)
        if spec.shuffle is not None:
            for index in np.flatnonzero(ours["place"].to_numpy() != batch.named_by[at]):
                self._found("name", rows[index], "is not named as in its source")
        for name, column in zip(spec.keep_columns, batch.values, strict=True) if len(at) else ():
            listed = ours[f"{KEPT_PREFIX}{name}"].combine_chunks()
            expected = column.take(pa.array(at, pa.int64()))
            for index in differing(listed, expected):
                words = f"has {listed[index].as_py()!r} in {name!r}, its source "
                self._found(name, rows[index], words + repr(expected[index].as_py()))
        for index in np.flatnonzero(np.isin(rows, [*self._sampled])):
            self._compare_ids(self._sampled[int(rows[index])], batch.texts[int(at[index])])
        absent = np.ones(len(batch.rows), np.bool_)
        absent[at] = False
        copies = absent & np.isin(batch.rows, self._left_out.rows)
        sizes = np.diff(text_buffers(batch.texts)[1])
        self._counts["text_bytes"] -= int(sizes[copies].sum())
        self._look_at_absent(batch, np.flatnonzero(absent & ~copies))
        if spec.deduplicate is None:
            return 0
        return self._compare_copies(batch.rows, text_digests(compared), at, copies)

    def _compare_copies(self, rows: Ints, hashes: Keys, at: Ints, copies: Flags) -> int:
        """Copies have the text of their first copy; returns the number of the rows that stayed."""
        groups = np.full(len(at), self._group.number)
        self._firsts.note(codes(groups, rows[at]), hashes[at])
        place = np.searchsorted(self._left_out.rows, rows[copies])
        firsts = codes(self._left_out.first_groups[place], self._left_out.first_rows[place])
        wrong = (self._firsts.of(firsts) != hashes[copies]).any(axis=1)
        for index in np.flatnonzero(wrong):
            words = f"is no copy of {shown(int(firsts[index]))} by their texts"
            self._found("copy", rows[copies][index], words, file=DUPLICATES_FOLDER)
        self._out.count(compared=len(at) + len(firsts))
        return summed(groups, rows[at], hashes[at])

    def _compare_ids(self, one: Sampled, text: pa.Scalar) -> None:
        """Tokenize a document and compare it with the ids in the shards."""
        ids = np.concatenate([np.empty(0, np.uint32), *one.ids])
        if len(ids) != one.tokens + 1:
            return  # a shard is damaged, which is a finding already
        eot_id = self._spec.tokenizer.eot_id
        expected = np.array([*self._tokenizer.encode(text.as_py()), eot_id], np.uint32)
        self._out.count(retokenized=1, retokenized_tokens=len(expected))
        common = min(len(ids), len(expected))
        different = np.flatnonzero(ids[:common] != expected[:common])
        if len(expected) != len(ids):
            words = f"is listed with {one.tokens} tokens, the reference makes {len(expected) - 1}"
            self._found("length", one.row, words, file=documents_path(one.part))
        if len(different):
            few = slice(int(different[0]), int(different[0]) + 5)
            words = f"has other ids from {few.start} on: {ids[few].tolist()}, the reference makes "
            self._found("ids", one.row, f"{words}{expected[few].tolist()}", file=one.shard)

    def _look_at_absent(self, batch: DocumentBatch, absent: Ints) -> None:
        """Texts of which no document was made: without a token, dropped for their tokens, or lost.

        The first are tokenized; of the others nothing but the number is compared.
        """
        filters, subset = self._spec.filters, self._spec.subset is not None
        for index in absent.tolist():
            text = batch.texts[index]
            size = len(text.as_buffer() or b"")
            if size and self._counts["tokenized"] >= _MOST_TOKENIZED:
                name = "not tokenized"
            else:
                self._counts["tokenized"] += bool(size)
                tokens = len(self._tokenizer.encode(text.as_py())) if size else 0
                dropped = filters.by_tokens(np.array([tokens])).items()
                name = next((str(name) for name, drops in dropped if drops[0]), "")
                name = name or ("unchosen_documents" if subset and tokens else "empty_documents")
                if tokens and name == "empty_documents":
                    words = f"is not listed, but it has {size} bytes of text that give tokens"
                    self._found("lost", batch.rows[index], words)
            self._counts[name] += 1
            self._counts["text_bytes"] -= size if name != "empty_documents" else 0

    def _compare_counts(self, record: PartRecord) -> None:
        recorded: dict[str, int] = {
            "rows": record.rows,
            "null_documents": record.null_documents,
            "bad_documents": record.bad_documents,
            "empty_documents": record.empty_documents,
        }
        recorded.update({str(name): count for name, count in record.dropped_documents.items()})
        if self._spec.subset is None:
            recorded["text_bytes"] = record.text_bytes
        else:
            recorded["unchosen_documents"] = record.unchosen_documents
        if self._counts["not tokenized"]:
            told = [name for name in _TOLD_BY_TOKENS if name in recorded]
            recorded["not tokenized"] = sum(recorded.pop(name) for name in told)
            self._counts["not tokenized"] += sum(self._counts[name] for name in told)
        for name, count in recorded.items():
            if count != self._counts[name]:
                words = f"{name} {count}, the source has {self._counts[name]}"
                self._out.found(self._group.counted_in, words)
        if record.bad_listed != tuple(self._bad[:MOST_BAD_LISTED]):
            self._out.found(self._group.counted_in, "lists other bad documents than the source has")

    def _found(self, kind: str, row: int, words: str, *, file: str = "") -> None:
        self._out.found(file or self._group.file, f"row {row} {words}", kind=kind)
