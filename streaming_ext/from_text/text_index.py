"""What training knows of a text: units as shards, and rows where a dataset made of it has them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from streaming_ext.base.arrays import Ints
from streaming_ext.dataset.formats.shard_table import units_of_order
from streaming_ext.dataset.index import TokenIndex
from streaming_ext.dataset.spec import DatasetSpec, TokenizerIdentity
from streaming_ext.from_text.fingerprint import PinnedPiece, fingerprint_of
from streaming_ext.from_text.scan import Found, token_file
from streaming_ext.from_text.units import Unit
from streaming_ext.text.parts.part import Part

PADDING: Final = -1  # in place of a unit: end-of-text ids that fill up the last row of a part


@dataclass(frozen=True, kw_only=True)
class TextIndex(TokenIndex):
    """One split of a text. A shard is the tokens of a unit, and a sample one token.

    Attributes:
        spec: what decides the tokens.
        units: all units.
        rows_before: rows of the file before each unit: (units,).
        unit_of_shard: number of the unit, or `PADDING`: (shards,).
        documents: of the split.
        order_starts: first token of each shard that a dataset made of the text has, then the end.
    """

    spec: DatasetSpec
    units: tuple[Unit, ...]
    rows_before: Ints
    unit_of_shard: Ints
    documents: int
    order_starts: Ints

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """Of the ids."""
        return self.spec.tokenizer

    def bounds(self, sequence_length: int) -> Ints:
        """As in a dataset that is made of the text, so that both have one order."""
        return units_of_order(self.order_starts, sequence_length)


def text_index(
    spec: DatasetSpec, parts: Sequence[Part], units: Sequence[Unit], found: Found, *, split: str
) -> TextIndex:
    """The index of one split.

    Each part is filled up to whole rows, as one of a dataset is. With rows of 4 tokens, and parts
    of two units:

        a a a b | b $ $ $ || c c c d | d d d d      $ fills up part 0: five tokens and three
    """
    names, tokens, hashes, owners, starts = [], [], [], [], [0]
    length, per_shard = spec.sequence_length, spec.shard_format.samples_per_shard
    of_part: list[list[int]] = [[] for _ in parts]
    for number, unit in enumerate(units):
        of_part[unit.part].append(number)
    for part, own in enumerate(of_part):
        total = 0
        for number in own:
            record = found.records[number]
            if count := record.tokens[split]:
                names.append(token_file(number))
                tokens.append(count)
                hashes.append(record.hashes[split])
                owners.append(number)
                total += count
        if padding := -total % length:
            names.append(f"padding-{part:05}-{padding}.tokens")
            tokens.append(padding)
            hashes.append(xxhash.xxh3_128_hexdigest(padding_of(spec, padding)))
            owners.append(PADDING)
        samples = (total + padding) // length
        begin = starts[-1]
        starts += [
            begin + min(first + per_shard, samples) * length
            for first in range(0, samples, per_shard)
        ]
    sizes = np.array(tokens, np.int64) * np.dtype(spec.dtype).itemsize
    pinned = [
        tuple(
            PinnedPiece(size=piece.source.size, version=version, span=piece.span)
            for piece, version in zip(part.pieces, versions, strict=True)
        )
        for part, versions in zip(parts, found.versions, strict=True)
    ]
    return TextIndex(
        names=names,
        raw_names=names,
        codecs=[None] * len(names),
        sizes=sizes,
        raw_sizes=sizes,
        hashes=[None] * len(names),
        raw_hashes=list(hashes),
        samples=np.array(tokens, np.int64),
        sample_tokens=1,
        dtype=spec.dtype,
        stored_raw_sizes=sizes,
        stored_raw_hashes=list(hashes),
        split=split,
        manifest=None,
        index_hash=fingerprint_of(spec, pinned, split=split),
        spec=spec,
        units=tuple(units),
        rows_before=_rows_before(units, found),
        unit_of_shard=np.array(owners, np.int64),
        documents=sum(record.documents[split] for record in found.records),
        order_starts=np.array(starts, np.int64),
    )


def padding_of(spec: DatasetSpec, count: int) -> bytes:
    """So many end-of-text ids."""
    return np.full(count, spec.tokenizer.eot_id, spec.dtype).tobytes()


def _rows_before(units: Sequence[Unit], found: Found) -> Ints:
    """Rows of a unit's file before it: (units,); 0 for units of whole files."""
    before = np.zeros(len(units), np.int64)
    for number in range(1, len(units)):
        mine, last = units[number].pieces[0], units[number - 1].pieces[-1]
        if mine.span is not None and last.span is not None and mine.source == last.source:
            before[number] = before[number - 1] + sum(found.records[number - 1].rows)
    return before
