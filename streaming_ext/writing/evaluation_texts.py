"""Evaluation texts, and the documents that hold an n-gram of their words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.arrays import Flags, Ints, look_up, ranges
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
from streaming_ext.text.word_ngrams import SEGMENT, Hashes, word_ngrams
from streaming_ext.writing.part_documents import PartDocuments, fetch_part

_SPARE_BITS: Final = 4  # of 16 slots, n-grams take one
_TEXT_BITS: Final = 32  # of the number of an evaluation text
_SHOWN: Final = 60  # characters of a text
_BLOCK_BYTES: Final = 2**18  # of texts whose ids are looked at together


@dataclass(frozen=True)
class HashSet:
    """Some hashes, ascending, and flags of the upper and of the lower bits that they have.

    Attributes:
        values: (hashes,).
        slots: (2, slots).
    """

    values: Hashes
    slots: Flags

    @classmethod
    def of(cls, values: Hashes) -> "HashSet":
        """Flag the bits of hashes, which ascend."""
        bits = (len(values) - 1).bit_length() + _SPARE_BITS
        slots = np.zeros((2, 2**bits), np.bool_)
        for flags, positions in zip(slots, _positions(values, bits), strict=True):
            flags[positions] = True
        return cls(values, slots)

    def maybe(self, wanted: Hashes) -> Ints:
        """The positions of those that may be among the hashes: all others are not."""
        upper, lower = _positions(wanted, self.slots.shape[1].bit_length() - 1)
        at = np.flatnonzero(taken(self.slots[0].view(np.uint8), upper))
        maybe: Ints = at[self.slots[1, lower[at]]]
        return maybe


@dataclass(frozen=True)
class EvaluationTexts:
    """Some texts, and the n-grams of their words.

    Attributes:
        rule: the entry of a specification that pins them.
        names: the location and the beginning of each text, for people.
        hashes: every n-gram of every text, in the order of their hashes.
        owners: the number of the text of each, (n-grams,).
        sums: the hashes of the n-grams that do not see the order of characters.
    """

    rule: ExcludedTexts
    names: tuple[str, ...]
    hashes: HashSet
    owners: Ints
    sums: HashSet

    @classmethod
    def read(
        cls, sources: Sequence[SourceFile], columns: tuple[str, ...], words: int, *, mark_only: bool
    ) -> "EvaluationTexts":
        """Read the texts.

        Args:
            sources: their files.
            columns: the columns of a text.
            words: the number of words of an n-gram.
            mark_only: documents that hold one stay.

        Raises:
            SourceError: a file is damaged or changed.
            UsageError: a file lacks the columns, or no text has as many words.
        """
        options = ReadOptions(columns=columns)
        look_into(sources, options)
        names, before = list[str](), 0
        found = [(np.empty(0, np.uint64), np.empty(0, np.int64))]
        sums = [found[0][0]]
        with new_folder() as folder:
            for source in sources:
                part = Part.whole(0, source)
                paths = fetch_part(part, folder, options=options)[0] if part.remote else ()
                for batch in PartDocuments(part, paths, options).batches():
                    ngrams = word_ngrams(batch.texts, words)
                    found.append((ngrams.hashes, ngrams.texts + before))
                    sums.append(word_ngrams(batch.texts, words, ordered=False).hashes)
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
        )

    def find(self, texts: pa.LargeStringArray, suspects: Flags | None = None) -> tuple[Ints, Ints]:
        """Find n-grams of these texts in documents.

        Args:
            texts: the texts of the documents, without nulls.
            suspects: a mask of the documents that may hold one, (documents,); None for all.

        Returns:
            the number of a document and of an evaluation text in it, each pair once: (pairs,) each.
        """
        rows = np.arange(len(texts)) if suspects is None else np.flatnonzero(suspects)
        if len(rows) < len(texts):
            texts = texts.take(pa.array(rows))
        wanted, documents = word_ngrams(texts, self.rule.words)
        maybe = self.hashes.maybe(wanted)
        wanted, documents = wanted[maybe], rows[documents[maybe]]
        known = self.hashes.values
        first = np.searchsorted(known, wanted)
        counts = np.searchsorted(known, wanted, side="right") - first
        owners = self.owners[ranges(first, counts)]
        pairs = np.unique(np.repeat(documents, counts) << _TEXT_BITS | owners)
        return pairs >> _TEXT_BITS, pairs & (2**_TEXT_BITS - 1)

    def suspects(self, words: TokenWords, texts: pa.LargeStringArray, encoded: Encoded) -> Flags:
        """Find the documents that may hold an n-gram, by their ids: a mask, (documents,).

        Args:
            words: the words of the tokenizer's tokens.
            texts: the texts of the documents, without nulls.
            encoded: their ids.
        """
        # Long texts are cut, maybe in a word, before their words are hashed.
        found: Flags = np.diff(text_buffers(texts)[1]) > SEGMENT
        for start, end in cut_by_bytes(texts, _BLOCK_BYTES):
            if found[start]:
                continue
            offsets = encoded.offsets[start : end + 1]
            ids = encoded.ids[offsets[0] : offsets[-1]]
            offsets = offsets - offsets[0]
            flags = words.flags(ids)
            unknown = np.searchsorted(offsets, words.unknown(flags), side="right") - 1
            found[start + unknown] = True
            if found[start:end].all():
                continue
            ngrams = words.ngrams(ids, flags, offsets, self.rule.words)
            maybe = self.sums.maybe(ngrams.hashes)
            is_known, _ = look_up(self.sums.values, ngrams.hashes[maybe])
            at = ngrams.firsts[maybe[is_known]]
            found[start + np.searchsorted(offsets, at, side="right") - 1] = True
        return found


def _positions(hashes: Hashes, bits: int) -> Iterator[npt.NDArray[np.uint32]]:
    """The upper bits of hashes, then the lower ones."""
    yield (hashes >> np.uint64(64 - bits)).astype(np.uint32)
    yield hashes.astype(np.uint32) & np.uint32(2**bits - 1)


def evaluation_rule(
    patterns: Sequence[str], columns: tuple[str, ...], words: int, *, mark_only: bool
) -> ExcludedTexts:
    """Read evaluation texts, and pin them for a specification.

    Args:
        patterns: their files, as sources are named.
        columns, words, mark_only: see `EvaluationTexts.read`.

    Raises:
        UsageError, SourceError, StorageError: they cannot be read; see `EvaluationTexts.read`.
    """
    return _opened(patterns, columns, words, mark_only=mark_only).rule


def _opened(
    patterns: Sequence[str], columns: tuple[str, ...], words: int, *, mark_only: bool
) -> EvaluationTexts:
    """The texts in these files, read again only if a file changed."""
    sources = tuple((each, each.modified) for each in list_sources(patterns))
    return _read(sources, columns, words, mark_only)


@lru_cache(1)  # a run plans more than once, and its report names the texts
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
    """The evaluation texts that a specification pins.

    Raises:
        SourceError: they changed, or cannot be read.
        ConfigMismatchError: this Python has another version of Unicode.
    """
    require_unicode(unicode)
    found = _opened(rule.files, rule.columns, rule.words, mark_only=rule.mark_only)
    if found.rule.hash != rule.hash:
        raise SourceError(
            f"The texts of --exclude-texts changed since the run began: {', '.join(rule.files)}. "
            "Run again with the same texts."
        )
    return found
