"""Tokenization of the documents of a part; a sink takes the token streams."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import EngineMismatchError, ScratchError, SourceError
from streaming_ext.format.filters import FilterName
from streaming_ext.format.layout import Split
from streaming_ext.format.record import (
    MOST_BAD_LISTED,
    BadDocument,
    PartCounts,
    SplitPart,
)
from streaming_ext.format.shuffled import Keys
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.text.documents.text_array import num_text_bytes, text_buffers
from streaming_ext.text.text_hashes import (
    compared_texts,
    document_hashes,
    first_ones,
    held_out,
    text_digests,
)
from streaming_ext.text.tokenizer.engine import (
    Encoded,
    Engine,
    audit_sample,
    check_ids,
    rows_to_audit,
    stream_of,
)
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.evaluation_texts import EvaluationTexts, evaluation_texts
from streaming_ext.writing.part_documents import PartDocuments
from streaming_ext.writing.part_files import Tokens

MOST_NOTED_TOKENS = 2**24 - 1  # per text
# Bytes of text per batch, a two-thousandth of it, because the reference is thirty times slower.
_AUDIT_BYTES = 2**13


@dataclass
class Counts:
    """The counts of `PartCounts`, and the tokens of all documents."""

    dropped_documents: Counter[FilterName]
    evaluation_texts: Counter[int]
    marked_documents: int = 0
    rows: int = 0
    null_documents: int = 0
    empty_documents: int = 0
    bad_documents: int = 0
    bad_listed: tuple[BadDocument, ...] = ()
    text_bytes: int = 0
    tokens: int = 0


Report = Callable[[float, Counts], None]


class NotedTexts:
    """The texts of a batch by their keys, with the number of tokens of known texts.

    Attributes:
        new: a mask of the texts to tokenize, (texts,).
    """

    def __init__(self, keys: Keys, own: Keys, tokens: Ints) -> None:
        """Find the texts that the batch holds more than once.

        Args:
            keys: the key of each text, which is equal for equal texts, (texts, 2).
            own: the upper bits of the note of each text, above the number of tokens, (texts,).
            tokens: the number of tokens of each known text, -1 for others, (texts,).
        """
        self.keys, self._own, self._tokens = keys, own, tokens
        order, firsts = first_ones(keys[:, 0], keys[:, 1])
        self._firsts = np.empty(len(order), np.int64)
        self._firsts[order] = firsts
        self.new: Flags = (tokens < 0) & (self._firsts == np.arange(len(order)))

    def lengths(self, of_new: Ints) -> Ints:
        """Return the number of tokens of all texts, given those of the new texts."""
        tokens = self._tokens.copy()
        tokens[self.new] = of_new
        lengths: Ints = np.where(tokens < 0, tokens[self._firsts], tokens)
        return lengths

    def notes(self, lengths: Ints) -> Keys:
        """Return the note of each text for the spill of hashes, (texts,)."""
        return self._own | np.minimum(lengths, MOST_NOTED_TOKENS).astype(np.uint64)


class KnownTexts(Protocol):
    """A set of tokenized texts, in which copies are looked up."""

    def look(self, texts: pa.LargeStringArray, digests: Keys) -> NotedTexts:
        """Look up the texts of a batch by their hashes: (texts, 2)."""
        ...

    def add(self, noted: NotedTexts, lengths: Ints, kept: Flags) -> None:
        """Remember the new texts of a batch that are kept."""
        ...


class Sink(Protocol):
    """The receiver of the documents of one part."""

    def add(self, tokens: Tokens) -> None:
        """Append documents."""
        ...

    def finish(self) -> dict[Split, SplitPart]:
        """Write what is left, and return what each split holds."""
        ...


@contextmanager
def emptied(folder: Path) -> Iterator[None]:
    """Make a folder on scratch, or empty it, before the block.

    Raises:
        SourceError: a source file cannot be read.
        ScratchError: scratch is full or not writable.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield
    except OSError as error:
        if (lost := error.filename) is not None and not Path(lost).is_relative_to(folder):
            raise SourceError(f"{lost}: cannot be read: {error.strerror}.") from error
        raise ScratchError(f"Cannot write to scratch {folder}: {error.strerror}.") from error


def make_part(
    documents: PartDocuments,
    spec: DatasetSpec,
    tokenizer: Tokenizer,
    engine: Engine,
    sink: Sink,
    *,
    report: Report = lambda fraction, counts: None,
    known: KnownTexts | None = None,
) -> PartCounts:
    """Tokenize a part into a sink, with memory that does not depend on the size of the part.

    Args:
        documents: the documents of the part.
        spec, tokenizer, engine, report, known: see `tokenize_batches`.
        sink: the receiver of the tokenized batches.

    Returns:
        The counts for the record of the part.

    Raises:
        SourceError: a file is damaged, holds no text or changes while it is read; the message names
            it.
        EngineMismatchError: fast engine and reference disagree on an audited document.
    """
    part = documents.part
    counts = tokenize_batches(
        documents, spec, tokenizer, engine, sink.add, report=report, known=known
    )
    if documents.without_text:
        raise SourceError("\n".join(documents.without_text))
    splits = sink.finish()
    is_file = [each.span for each in part.spans] == [None]
    recorded = vars(counts).copy()
    tokens = recorded.pop("tokens")
    if (packed := sum(split.tokens for split in splits.values())) != tokens:
        raise RuntimeError(f"{part.source}: {packed} tokens packed of {tokens}")
    return PartCounts(
        part=part.number,
        spec=spec,
        source=documents.spans[0].source,
        spans=() if is_file else tuple(documents.spans),
        splits=splits,
        **recorded,
    )


def tokenize_batches(
    documents: PartDocuments,
    spec: DatasetSpec,
    tokenizer: Tokenizer,
    engine: Engine,
    take: Callable[[Tokens], None],
    *,
    report: Report = lambda fraction, counts: None,
    known: KnownTexts | None = None,
    audited: bool = True,
) -> Counts:
    """Tokenize documents and pass them on, batch by batch.

    Args:
        documents: the documents of a part.
        spec: the specification of the dataset.
        tokenizer: the reference.
        engine: the engine that tokenizes.
        take: called with each tokenized batch.
        report: called with the fraction of the work that is done, and the counts so far.
        known: the texts whose copies are left out and not tokenized.
        audited: True to compare a sample of the engine's ids with the reference.

    Raises:
        SourceError, EngineMismatchError: see `make_part`.
    """
    locate, where = documents.locate, documents.part.source
    evaluation = None if spec.exclude is None else evaluation_texts(spec.exclude, spec.unicode)
    counts = Counts(Counter(dict.fromkeys(spec.drops, 0)), Counter())
    for batch in documents.batches():
        hashes, digests = _hashes_of(batch.texts, spec)
        noted = None
        # new: (texts of the batch,), the texts to tokenize; `texts` holds only these
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
            url, row = locate(int(batch.rows[0]))
            raise type(error)(f"{url}, in the batch from {row} on: {error}") from error
        check_ids(encoded, tokenizer, where=where, locate=partial(_locate, locate, batch.rows[new]))

        # lengths: (documents of the batch,), counting the beginning-of-text id of those with tokens
        begins, lengths = tokenizer.bos_id is not None, np.diff(encoded.offsets)
        lengths += begins & (lengths > 0)
        if noted is not None:
            lengths = noted.lengths(lengths)
        kept, has_tokens = lengths > 0, int(np.count_nonzero(lengths))
        drops = spec.filters.by_tokens(lengths - begins)
        if evaluation is not None:
            suspects = _suspects(evaluation, engine, new, texts, encoded)
            drops = _with_evaluation(batch.texts, suspects, evaluation, counts, kept) | drops
        for name, dropped in drops.items():
            counts.dropped_documents[name] += int((dropped & kept).sum())
            counts.text_bytes -= int(np.diff(text_buffers(batch.texts)[1])[dropped & kept].sum())
            kept &= ~dropped
        stream = stream_of(encoded, kept[new], spec.dtype, tokenizer)
        del encoded
        in_holdout = held_out(hashes, fraction=spec.holdout_fraction)[kept]
        notes = None if noted is None else noted.notes(lengths)
        take(Tokens(batch, kept, stream, lengths[kept], in_holdout, digests, notes, ~new[kept]))
        if known is not None and noted is not None:
            known.add(noted, lengths, kept)

        counts.rows += batch.num_rows
        counts.null_documents += batch.nulls
        counts.bad_documents += len(batch.bad)
        left = MOST_BAD_LISTED - len(counts.bad_listed)
        counts.bad_listed += tuple(documents.bad_of(batch)[:left])
        counts.empty_documents += len(lengths) - has_tokens
        counts.dropped_documents.update(batch.dropped)
        counts.text_bytes += num_text_bytes(batch.texts)
        counts.tokens += int((lengths[kept] + 1).sum())
        report(batch.fraction, counts)
        # Free these before the next batch is read, since they may be large.
        del batch, hashes, stream, in_holdout
    return counts


def _suspects(
    evaluation: EvaluationTexts,
    engine: Engine,
    new: Flags,
    texts: pa.LargeStringArray,
    encoded: Encoded,
) -> Flags:
    """Find the documents of a batch that may hold an n-gram: all whose ids do not exclude it."""
    suspects = np.ones(len(new), np.bool_)
    if engine.words is not None:
        suspects[new] = evaluation.suspects(engine.words, texts, encoded)
    return suspects


def _with_evaluation(
    texts: pa.LargeStringArray,
    suspects: Flags,
    evaluation: EvaluationTexts,
    counts: Counts,
    kept: Flags,
) -> dict[FilterName, Flags]:
    """Count the documents that hold an n-gram of an evaluation text; return those to drop."""
    documents, numbers = evaluation.find(texts, suspects)
    counts.evaluation_texts.update(numbers[kept[documents]].tolist())
    holds = np.zeros(len(texts), np.bool_)
    holds[documents] = True
    if not evaluation.rule.mark_only:
        return {"exclude_texts": holds}
    counts.marked_documents += int((holds & kept).sum())
    return {}


def _hashes_of(texts: pa.LargeStringArray, spec: DatasetSpec) -> tuple[Keys, Keys | None]:
    """Hash the texts in the form in which they are compared.

    Returns:
        The hashes for the holdout, (texts,); both halves of the hashes for copies, (texts, 2).
    """
    compared = compared_texts(texts, spec.deduplicate, spec.unicode)
    hashes = document_hashes(compared, seed=spec.holdout_seed)
    return hashes, None if spec.deduplicate in (None, "near") else text_digests(compared)


def _locate(locate: Callable[[int], tuple[str, str]], rows: Ints, document: int) -> tuple[str, str]:
    """Return the file and the row of a tokenized document of a batch, for people."""
    return locate(int(rows[document]))
