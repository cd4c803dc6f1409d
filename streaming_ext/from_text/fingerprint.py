"""What a text's tokens are known by: the same for the text, and for a dataset made of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.reading import read_listed, record_of
from streaming_ext.dataset.record import PartSummary, PieceRecord
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.shards.cache import ShardCache
from streaming_ext.text.documents.source_format import Span

PREFIX: Final = "text:"
_NO_MATTER: Final = {"tokenizer": {"name": True}}


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedPiece:
    """Some of one source file, by its content; where it lies is left out.

    Attributes:
        size: of the file, in bytes.
        version: what pins the content.
        span: of the piece; None for the whole file.
    """

    size: int
    version: str
    span: Span | None


def fingerprint_of(spec: DatasetSpec, parts: Sequence[Sequence[PinnedPiece]], *, split: str) -> str:
    """The fingerprint of a split.

    Args:
        spec: what decides the tokens, beside the files. The tokenizer's name is left out.
        parts: the pieces of each.
        split: which one.
    """
    told = {
        "spec": spec.model_dump(mode="json", exclude=_NO_MATTER),
        "split": split,
        "parts": [
            [[piece.size, piece.version, piece.span] for piece in pieces] for pieces in parts
        ],
    }
    return PREFIX + content_hash(json.dumps(told, sort_keys=True).encode())


def text_fingerprint(cache: ShardCache) -> str | None:
    """What the text that a dataset was made of is known by; None where no text has its rows.

    Raises:
        CorruptDatasetError: a record of the dataset is missing or damaged.
    """
    index = cache.index
    manifest = index.manifest
    if manifest is None or manifest.share is not None or manifest.spec.two_stages:
        return None
    if manifest.merged:  # each of its datasets may have been read in its own way
        return None
    parts = []
    for part in manifest.parts:
        pieces: Sequence[PieceRecord | PartSummary] = (part,)
        if part.files > 1:
            data = read_listed(cache.source, part.record)
            pieces = record_of(data, where=part.record.path).made_of
        parts.append(
            [
                PinnedPiece(size=piece.source.size, version=piece.source.version, span=piece.span)
                for piece in pieces
            ]
        )
    return fingerprint_of(manifest.spec, parts, split=index.split)
