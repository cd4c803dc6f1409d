"""Evaluation texts, and the search for documents that hold an n-gram of their words."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.arrays import Flags, Ints, ceil_div, look_up, ranges
from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.schema import content_hash
from streaming_ext.format.spec import ExcludedTexts, ReadOptions
from streaming_ext.store.scratch import new_folder
from streaming_ext.text.documents.text_array import cut_by_bytes, taken, text_buffers
from streaming_ext.text.listing import list_sources
from streaming_ext.text.look import look_into
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.text_hashes import require_unicode
from streaming_ext.text.token_words import TokenWords
from streaming_ext.text.tokenizer.engine import Encoded
from streaming_ext.text.word_ngrams import (
    SEGMENT,
    Hashes,
    Sums,
    are_inside,
    sums_before,
    word_ngrams,
    words_of,
)
from streaming_ext.writing.part_documents import PartDocuments, fetch_part

_SPARE_BITS: Final = 4  # n-grams take at most one of 16 slots
_TEXT_BITS: Final = 32  # for the number of an evaluation text
_SHOWN: Final = 60  # characters of a text
_BLOCK_BYTES: Final = 2**18  # of texts whose ids are searched together


@dataclass(frozen=True)
class HashSet:
    """Some hashes in ascending order, and a table that flags their lower bits.

    Attributes:
        values: the hashes, (hashes,).
        flags: eight flags per byte, so that they stay in a processor's cache, (slots / 8,).
    """

    values: Hashes | Sums
    flags: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, values: Hashes | Sums) -> "HashSet":
        """Flag the lower bits of hashes, which must be in ascending order."""
        slots = np.zeros(2 ** ((len(values) - 1).bit_length() + _SPARE_BITS), np.bool_)
        slots[values & np.uint32(len(slots) - 1)] = True
        return cls(values, np.packbits(slots, bitorder="little"))

    def maybe(self, wanted: Hashes | Sums) -> Ints:
        """Return the positions of wanted hashes that may be in the set; the others are not."""
        slots = wanted.astype(np.uint32, copy=False) & np.uint32(8 * len(self.flags) - 1)
        flags = taken(self.flags, slots >> 3) >> (slots & 7).astype(np.uint8) & 1
        return np.flatnonzero(flags.view(np.bool_))

    def find(self, wanted: Hashes | Sums) -> tuple[Ints, Ints]:
        """Find the wanted hashes that are in the set.

        Returns:
            Their positions in `wanted`, and their first positions in `values`: (found,) each.
        """
        maybe = self.maybe(wanted)
        is_known, at = look_up(self.values, wanted[maybe])
        return maybe[is_known], at


@dataclass(frozen=True)
class EvaluationTexts:
    """Some texts, and the n-grams of their words.

    Attributes:
        rule: the entry of a specification that identifies the texts.
        names: the location and the beginning of each text, for people.
        hashes: the hashes of all n-grams of all texts.
        owners: the number of the text that holds each n-gram, (n-grams,).
        sums: the sum of the characters of each n-gram, which does not depend on their order.
        chunks: the sums of the characters of fewer consecutive words; see `_chunk`.
    """

    rule: ExcludedTexts
    names: tuple[str, ...]
    hashes: HashSet
    owners: Ints
    sums: HashSet
    chunks: HashSet

    @classmethod
    def read(
        cls, sources: Sequence[SourceFile], columns: tuple[str, ...], words: int, *, mark_only: bool
    ) -> "EvaluationTexts":
        """Read the texts.

        Args:
            sources: the files of the texts.
            columns: the columns of a text.
            words: the number of words of an n-gram.
            mark_only: True if documents that hold an n-gram stay.

        Raises:
            SourceError: a file is damaged or changed.
            UsageError: a file lacks the columns, or no text has enough words.
        """
        options = ReadOptions(columns=columns)
        try:
            look_into(sources, options)
        except UsageError as error:
            advice = str(error).replace("--text-column", "--exclude-column")
            raise UsageError(advice) from error
        names, before = list[str](), 0
        found = [(np.empty(0, np.uint64), np.empty(0, np.int64))]
        sums, chunks = list[Sums](), list[Sums]()
        with new_folder() as folder:
            for source in sources:
                part = Part.whole(0, source)
                paths = fetch_part(part, folder, options=options)[0] if part.remote else ()
                for batch in PartDocuments(part, paths, options).batches():
                    ngrams = word_ngrams(batch.texts, words)
                    found.append((ngrams.hashes, ngrams.texts + before))
                    values, owners = words_of(batch.texts, ordered=False)
                    added_up = sums_before(values.astype(np.uint32))
                    for kept, count in ((sums, words), (chunks, _chunk(words))):
                        kept.append(
                            (added_up[count:] - added_up[:-count])[are_inside(owners, count)]
                        )
                    before += len(batch.texts)
                    names += [
                        f"{source.url}, row {row}: {' '.join(text[:_SHOWN].split())!r}"
                        for row, text in zip(
                            batch.rows.tolist(), batch.texts.to_pylist(), strict=True
                        )
                    ]
        hashes, owners = (np.concatenate(column) for column in zip(*found, strict=True))
        order = np.lexsort((owners, hashes))
        hashes, owners = hashes[order], owners[order]
        is_new = np.append(True, (np.diff(hashes) > 0) | (np.diff(owners) > 0))[: len(hashes)]
        hashes, owners = hashes[is_new], owners[is_new]
        if not len(hashes):
            raise UsageError(
                f"No text of --exclude-texts has {words} words: none would be found. Lower "
                "--exclude-ngram, or name their column with --exclude-column."
            )
        rule = ExcludedTexts(
            files=tuple(source.url for source in sources),
            columns=columns,
            words=words,
            texts=before,
            without_ngram=before - len(np.unique(owners)),
            mark_only=mark_only,
            hash=content_hash(np.stack([hashes, owners.astype(np.uint64)]).tobytes()),
        )
        return cls(
            rule,
            tuple(names),
            HashSet.of(hashes),
            owners,
            HashSet.of(np.unique(np.concatenate(sums))),
            HashSet.of(np.unique(np.concatenate(chunks))),
        )

    def find(self, texts: pa.LargeStringArray, suspects: Flags | None = None) -> tuple[Ints, Ints]:
        """Find n-grams of these texts in documents.

        Args:
            texts: the texts of the documents, without nulls.
            suspects: a mask of the documents to search, (documents,); None for all.

        Returns:
            The numbers of a document and of an evaluation text in it, each pair once: (pairs,)
            each.
        """
        rows = np.arange(len(texts)) if suspects is None else np.flatnonzero(suspects)
        if len(rows) < len(texts):
            texts = texts.take(pa.array(rows))
        wanted, documents = word_ngrams(texts, self.rule.words)
        found, first = self.hashes.find(wanted)
        counts = np.searchsorted(self.hashes.values, wanted[found], side="right") - first
        owners = self.owners[ranges(first, counts)]
        documents = np.repeat(rows[documents[found]], counts)
        pairs = np.unique(documents << _TEXT_BITS | owners)
        return pairs >> _TEXT_BITS, pairs & (2**_TEXT_BITS - 1)

    def suspects(self, words: TokenWords, texts: pa.LargeStringArray, encoded: Encoded) -> Flags:
        """Find the documents that may hold an n-gram, by their ids; return a mask, (documents,).

        Args:
            words: the words of the tokenizer's tokens.
            texts: the texts of the documents, without nulls.
            encoded: the ids of the documents.
        """
        # Long texts are always suspects, because they are cut, maybe in a word, before hashing.
        found: Flags = np.diff(text_buffers(texts)[1]) > SEGMENT
        for start, end in cut_by_bytes(texts, _BLOCK_BYTES):
            if found[start:end].all():
                continue
            offsets = encoded.offsets[start : end + 1]
            ids = encoded.ids[offsets[0] : offsets[-1]]
            offsets = offsets - offsets[0]
            before, firsts, unknown = words.sums(ids, offsets)
            found[start + np.searchsorted(offsets, unknown, side="right") - 1] = True
            at = self._candidates(before)
            at = at[self.sums.find(before[at + self.rule.words] - before[at])[0]]
            found[start + np.searchsorted(offsets, firsts[at], side="right") - 1] = True
        return found

    def _candidates(self, before: Sums) -> Ints:
        """Find the positions of the words that may begin an n-gram of an evaluation text.

        Only some chunks are looked up. With n-grams of 13 words and chunks of 5 words, the chunks
        that begin at every ninth word are enough: every n-gram holds one of them.

        Args:
            before: the sum of the characters before each word, then of all words: (words + 1,).
        """
        words = self.rule.words
        chunk = _chunk(words)
        step = words - chunk + 1
        at = np.arange(0, len(before) - chunk, step)
        at = at[self.chunks.maybe(before[at + chunk] - before[at])]
        first = (at[:, None] - np.arange(step)[::-1]).ravel()
        return first[(first >= 0) & (first + words < len(before))]


def _chunk(words: int) -> int:
    """Return the number of words of a chunk; an n-gram holds several chunks."""
    return ceil_div(words, 3)


def texts_in(
    patterns: Sequence[str], columns: tuple[str, ...], words: int, *, mark_only: bool
) -> EvaluationTexts:
    """Return the evaluation texts in some files, which are read again only if a file changed.

    Args:
        patterns: the files, named like sources.
        columns, words, mark_only: see `EvaluationTexts.read`.

    Raises:
        UsageError, SourceError, StorageError: the files cannot be read; see `EvaluationTexts.read`.
    """
    sources = tuple((each, each.modified) for each in list_sources(patterns))
    return _read(sources, columns, words, mark_only)


@lru_cache(1)  # a run plans more than once, and its report names the texts too
def _read(
    sources: tuple[tuple[SourceFile, int | None], ...],  # each with the time of its last change
    columns: tuple[str, ...],
    words: int,
    mark_only: bool,
) -> EvaluationTexts:
    files = [source for source, _ in sources]
    return EvaluationTexts.read(files, columns, words, mark_only=mark_only)


@lru_cache(1)  # for all parts that a process makes
def evaluation_texts(rule: ExcludedTexts, unicode: str | None) -> EvaluationTexts:
    """Return the evaluation texts that a specification identifies.

    Raises:
        SourceError: the texts changed, or cannot be read.
        ConfigMismatchError: this Python has another version of Unicode.
    """
    require_unicode(unicode)
    found = texts_in(rule.files, rule.columns, rule.words, mark_only=rule.mark_only)
    if found.rule.hash != rule.hash:
        raise SourceError(
            f"The texts of --exclude-texts changed since the run began: {', '.join(rule.files)}. "
            "Run again with the same texts."
        )
    return found
