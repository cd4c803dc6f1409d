"""From the pieces of a part to its packed shards on scratch."""

import gc
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.dataset.record import (
    MOST_BAD_LISTED,
    BadDocument,
    PieceRecord,
    SourceIdentity,
)
from streaming_ext.dataset.shuffled.keys import Keys
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import EngineMismatchError, ScratchError, SourceError
from streaming_ext.text.documents.text_array import num_text_bytes, text_buffers
from streaming_ext.text.filters.filters import FilterName
from streaming_ext.text.holdout import document_hashes, held_out
from streaming_ext.text.identity import identify, identity_of
from streaming_ext.text.normal_form import compared_texts
from streaming_ext.text.parts.part import Part
from streaming_ext.text.text_digests import text_digests
from streaming_ext.text.token_sets.id_documents import IdsAsTheyAre
from streaming_ext.text.tokenizer.engine import Engine, audit_sample, choose_engine
from streaming_ext.text.tokenizer.prepared import read_unsafe_code_points
from streaming_ext.text.tokenizer.token_stream import check_ids, rows_to_audit, stream_of
from streaming_ext.text.tokenizer.tokenizer import Tokenizer, open_saved
from tasks.core.deduplicate.known_texts import KnownTexts
from tasks.core.memories import Memories
from tasks.core.reading.part_documents import PartDocuments, PieceHere
from tasks.core.workers.jobs import TokenizedPart
from tasks.core.workers.kept import Kept
from tasks.core.workers.messages import Job, JobProgress, Message, Report
from tasks.core.workers.sinks import KeptInOrder, Packed, Sink, Sorted, Tokens

_AUDIT_BYTES = 2**13  # of text a batch, a two-thousandth: the reference is thirty times slower


@dataclass(slots=True)
class Counts:
    """Rows of a part, what became of them, and tokens of its documents."""

    rows: int = 0
    nulls: int = 0
    empty: int = 0
    bad: int = 0
    bad_listed: list[BadDocument] = field(default_factory=list)
    dropped: Counter[FilterName] = field(default_factory=Counter)
    text_bytes: int = 0
    audited: int = 0
    tokens: int = 0


class Prepared(Message):
    """The tokenizer is loaded."""


class PrepareJob(Job[Prepared]):
    """Load the tokenizer, before the first file asks for it.

    Attributes:
        tokenizer_folder: what `Tokenizer.save` wrote.
    """

    RESULT = Prepared

    tokenizer_folder: str
    engine: Literal["auto", "reference"]

    @classmethod
    def of(cls, folder: Path, engine: Literal["auto", "reference"]) -> "PrepareJob":
        """The job for a tokenizer that lies in a folder."""
        return cls(tokenizer_folder=str(folder), engine=engine)

    def do(self, kept: Kept, report: Report) -> Prepared:
        """See `tokenizer_and_engine`."""
        kept.last(tokenizer_and_engine, self.tokenizer_folder, self.engine)
        return Prepared()


class TokenizeJob(Job[TokenizedPart]):
    """Tokenize one part into packed shards on scratch.

    Attributes:
        part: its number and pieces.
        paths: where the bytes of its pieces lie; none where that is their sources' own place.
        scratch: folder that the result goes to, replaced if it exists.
        tokenizer_folder: what `Tokenizer.save` wrote.
        first_source: number of the source of the first piece, where documents are shuffled.
        first: number of the first part of the run.
        one_run: a shuffled part becomes one run, however large it is.
        known_on: the output, where copies of texts of its earlier parts need not be tokenized.
    """

    RESULT = TokenizedPart

    part: Part
    paths: tuple[str, ...] = ()
    scratch: str
    tokenizer_folder: str
    engine: Literal["auto", "reference"]
    spec: DatasetSpec
    first_source: int = 0
    first: int = 0
    one_run: bool = False
    known_on: str | None = None

    def do(self, kept: Kept, report: Report) -> TokenizedPart:
        """See `tokenize_part`."""
        tokenizer, engine = kept.last(tokenizer_and_engine, self.tokenizer_folder, self.engine)
        known = None
        if self.known_on is not None:
            output = kept.storage(self.known_on)
            known = kept.last(KnownTexts, output, self.spec, self.first)
        return tokenize_part(self, tokenizer, engine, report, kept.memories, known=known).brief()


def tokenizer_and_engine(
    folder: str, engine: Literal["auto", "reference"]
) -> tuple[Tokenizer, Engine]:
    """The tokenizer that lies in a folder, and what tokenizes."""
    tokenizer = open_saved(Path(folder))
    unsafe = read_unsafe_code_points(Path(folder))
    chosen = choose_engine(tokenizer, engine=engine, unsafe=unsafe)
    gc.freeze()  # what is loaded stays: looking through it again and again costs a twentieth
    return tokenizer, chosen


def tokenize_part(
    job: TokenizeJob,
    tokenizer: Tokenizer,
    engine: Engine,
    report: Callable[[JobProgress], None] = lambda progress: None,
    memories: Memories | None = None,
    *,
    known: KnownTexts | None = None,
) -> TokenizedPart:
    """Tokenize and pack the pieces of a part into `job.scratch`.

    Memory does not depend on their size.

    Args:
        job: which part, from where and to where.
        tokenizer: the reference.
        engine: what tokenizes.
        report: told how far it is.
        memories: for raw shards; kept from part to part they save fresh pages.
        known: texts of which copies are left out, and need not be tokenized.

    Raises:
        SourceError: a file is damaged or changes while it is read; names it.
        EngineMismatchError: fast engine and reference disagree on an audited document.
        ScratchError: scratch is full or not writable.
    """
    began = time.monotonic()
    if job.spec.imported is not None:
        engine = IdsAsTheyAre()
    pins = _Pins(job)
    folder = Path(job.scratch)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        sink: Packed | KeptInOrder | Sorted
        if not job.spec.two_stages:
            sink = Packed(folder, job.part.number, job.spec, {} if memories is None else memories)
        elif job.spec.shuffle is None:
            sink = KeptInOrder(folder, job.part.number, job.spec, pins.documents)
        else:
            sink = Sorted(
                folder,
                job.part.number,
                job.spec,
                first_source=job.first_source,
                documents=pins.documents,
                one_run=job.one_run,
            )
        if known is not None:
            known.begin(job.part.number)
        counts = tokenize_batches(
            pins.documents,
            job.spec,
            tokenizer,
            engine,
            sink,
            where=job.part.source,
            report=report,
            known=known,
        )
        splits = sink.finish()
    except OSError as error:
        if (lost := error.filename) is not None and not Path(lost).is_relative_to(folder):
            raise SourceError(f"{lost}: cannot be read: {error.strerror}.") from error
        raise ScratchError(f"Cannot write to scratch {folder}: {error.strerror}.") from error
    if (packed := sum(split.tokens for split in splits.values())) != counts.tokens:
        raise RuntimeError(f"{job.part.source}: {packed} tokens packed of {counts.tokens}")
    result = TokenizedPart(
        part=job.part.number,
        source=pins.pieces[0].source,
        pieces=() if pins.is_whole else tuple(pins.pieces),
        rows=counts.rows,
        null_documents=counts.nulls,
        empty_documents=counts.empty,
        bad_documents=counts.bad,
        bad_listed=tuple(counts.bad_listed),
        dropped_documents={name: counts.dropped[name] for name in job.spec.filters.given()},
        text_bytes=counts.text_bytes,
        splits=splits,
        audited_documents=counts.audited,
        engine=engine.name,
        seconds=time.monotonic() - began,
        ended=time.time(),
        piece_documents=() if isinstance(sink, Packed) else sink.documents,
        whole_version=pins.whole_version() if isinstance(sink, Sorted) else None,
        runs=None if isinstance(sink, Packed) else sink.runs,
        digests=() if isinstance(sink, Packed) else sink.digests,
    )
    result.save(folder)
    return result


class _Pins:
    """What pins each piece of a part, found as it is read."""

    def __init__(self, job: TokenizeJob) -> None:
        self.job = job
        pieces = job.part.pieces
        self._options = job.spec.read_options
        paths = job.paths or tuple(piece.source.url for piece in pieces)
        here = [
            PieceHere(piece.source.url, Path(path), piece.span, piece.size)
            for piece, path in zip(pieces, paths, strict=True)
        ]
        self._coming = iter(pieces)
        self._identity: SourceIdentity | None = None
        self._before: tuple[int, int, int] | None = None
        self.documents = PartDocuments(here, self._options, begin=self._begin, end=self._end)
        self.is_whole = len(pieces) == 1 and pieces[0].span is None
        self.pieces: list[PieceRecord] = []

    def whole_version(self) -> str | None:
        """What pins all of a local file of which the part is the first piece."""
        piece = self.job.part.pieces[0]
        if piece.span is None or piece.span[0] or piece.source.version is not None:
            return None
        return identify(piece.source, Path(piece.source.url)).version

    def _begin(self, here: PieceHere) -> None:
        piece = next(self._coming)
        self._before = _state_of(here.path)
        listed = piece.source.modified  # where others read the rest of the file, it must stay
        if piece.span is not None and self._before and listed not in {None, self._before[2]}:
            raise SourceError(f"{here.url}: changed since the run began. Run again.")
        self._identity = identity_of(piece.source, here.path, span=here.span, options=self._options)

    def _end(self, here: PieceHere) -> None:
        assert self._identity is not None  # noqa: S101  (set when it began)
        if self._before is None or _state_of(here.path) != self._before:
            raise SourceError(f"{here.url}: changed while it was read. Run again.")
        self.pieces.append(
            PieceRecord(source=self._identity, span=here.span, rows=self.documents.rows[-1])
        )


def _state_of(file: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written to or replaced; None when it is gone."""
    try:
        state = file.stat()
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns


def tokenize_batches(
    documents: PartDocuments,
    spec: DatasetSpec,
    tokenizer: Tokenizer,
    engine: Engine,
    sink: Sink,
    *,
    where: str,
    report: Callable[[JobProgress], None],
    known: KnownTexts | None = None,
    audited: bool = True,
) -> Counts:
    """Tokenize documents and hand them on, batch by batch.

    Args:
        documents: of a part.
        spec: of the dataset.
        tokenizer: the reference.
        engine: what tokenizes.
        sink: takes what comes of it.
        where: the documents are of, for messages.
        report: called with how far it is.
        known: see `tokenize_part`.
        audited: whether some of what the engine makes is compared with the reference.

    Raises:
        SourceError, EngineMismatchError: see `tokenize_part`.
    """
    place = documents.place
    counts = Counts()
    for batch in documents.batches():
        if known is not None:
            all_hashes = known.hashes(batch.texts, partial(_hashes_of, spec=spec))
        else:
            all_hashes = _hashes_of(batch.texts, spec)
        hashes = all_hashes[:, 0]
        digests = None if spec.deduplicate is None else all_hashes[:, 1:]
        noted = None
        # new: (texts,), those to be tokenized; `texts` are these
        new, texts = np.ones(len(hashes), np.bool_), batch.texts
        if known is not None and digests is not None:
            noted = known.look(batch.texts, digests)
            if not (new := noted.new).all():
                texts = batch.texts.filter(pa.array(new))
        rows = (
            rows_to_audit(hashes[new], texts, num_bytes=_AUDIT_BYTES)
            if audited and spec.imported is None
            else []
        )
        try:
            encoded = engine.encode(texts)
            audit_sample(tokenizer, texts, encoded, rows)
        except (EngineMismatchError, SourceError) as error:
            url, row = place(int(batch.rows[0]))
            raise type(error)(f"{url}, in the batch from {row} on: {error}") from error
        check_ids(encoded, tokenizer, where=where, place=partial(_place_of, place, batch.rows[new]))

        # lengths: (documents of the batch that have a token,)
        lengths = np.diff(encoded.offsets)
        if noted is not None:
            lengths = noted.lengths(lengths)
        kept, has_tokens = lengths > 0, int((lengths > 0).sum())
        for name, dropped in spec.filters.by_tokens(lengths).items():
            counts.dropped[name] += int((dropped & kept).sum())
            counts.text_bytes -= int(np.diff(text_buffers(batch.texts)[1])[dropped & kept].sum())
            kept &= ~dropped
        stream = stream_of(encoded, lengths[new], kept[new], spec.dtype, tokenizer.eot_id)
        del encoded
        in_holdout = held_out(hashes, fraction=spec.holdout_fraction)[kept]
        notes = None if noted is None else noted.notes(lengths)
        sink.add(Tokens(batch, kept, stream, lengths[kept], in_holdout, digests, notes, ~new[kept]))
        if known is not None and noted is not None:
            known.add(noted, lengths, kept)

        counts.rows += batch.num_rows
        counts.nulls += batch.nulls
        counts.bad += len(batch.bad)
        left = MOST_BAD_LISTED - len(counts.bad_listed)
        counts.bad_listed += documents.bad_of(batch)[:left]
        counts.empty += len(lengths) - has_tokens
        for by_text, count in batch.dropped.items():
            counts.dropped[by_text] += count
        counts.text_bytes += num_text_bytes(batch.texts)
        counts.audited += len(rows)
        counts.tokens += int((lengths[kept] + 1).sum())
        report(
            JobProgress(
                fraction=batch.fraction,
                text_bytes=counts.text_bytes,
                tokens=counts.tokens,
            )
        )
        del batch, hashes, stream, in_holdout  # before the next is read: one may be large
    return counts


def _hashes_of(texts: pa.LargeStringArray, spec: DatasetSpec) -> Keys:
    """Hashes of what of each text is compared: (texts, 1 or 3).

    The first is for the holdout; where copies are looked for, two halves of that which tells them
    follow.
    """
    compared = compared_texts(texts, spec.deduplicate, spec.unicode)
    hashes = document_hashes(compared, seed=spec.holdout_seed)[:, None]
    return hashes if spec.deduplicate is None else np.hstack([hashes, text_digests(compared)])


def _place_of(
    place: Callable[[int], tuple[str, str]], rows: npt.NDArray[np.int64], document: int
) -> tuple[str, str]:
    """File and row of a tokenized document of a batch, for people."""
    return place(int(rows[document]))
