"""Which of the sources of an extension are in the dataset already."""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streaming_ext.dataset.record import PartRecord, PieceRecord
from streaming_ext.dataset.shuffled.source_table import Source
from streaming_ext.errors import ConfigMismatchError
from streaming_ext.text.documents.options import ReadOptions
from streaming_ext.text.identity import identify
from streaming_ext.text.sources import SourceFile
from tasks.core.planning.sources import shortened
from tasks.core.storage import Storage

_IO_THREADS = 8
_HUB_REVISION = re.compile(r"(hf://[^@]+)@[^/]+/")


def place_of(url: str) -> str:
    """A source's URL but for the revision, which is another one whenever the Hub's dataset grew."""
    return _HUB_REVISION.sub(r"\1/", url)


def all_pieces(records: Mapping[int, PartRecord]) -> list[PieceRecord]:
    """What parts were made of."""
    return [piece for record in records.values() for piece in record.made_of]


def pieces_of(sources: Iterable[Source]) -> list[PieceRecord]:
    """The same of the sources of a shuffled dataset."""
    return [
        PieceRecord(source=source.identity, span=source.span, rows=source.rows)
        for source in sources
    ]


def new_sources(
    storage: Storage,
    made_of: Iterable[PieceRecord],
    sources: Sequence[SourceFile],
    options: ReadOptions,
) -> tuple[SourceFile, ...]:
    """Those of the sources that are not in the dataset; those that are must not have changed.

    Of local files that are in it, the bytes are read and hashed.

    Args:
        storage: names the dataset in messages.
        made_of: all that it was made of.
        sources: that are asked for.
        options: what is read of them.

    Raises:
        ConfigMismatchError: a file is in the dataset with other bytes; names them all.
    """
    there: dict[str, list[PieceRecord]] = {}
    for piece in made_of:
        there.setdefault(place_of(piece.source.url), []).append(piece)
    known = [source for source in sources if place_of(source.url) in there]
    with ThreadPoolExecutor(_IO_THREADS) as threads:
        found = threads.map(
            lambda source: _difference(source, there[place_of(source.url)], options), known
        )
        differences = [words for words in found if words is not None]
    if differences:
        raise ConfigMismatchError(
            f"{storage} holds other bytes of these sources, so some of their texts would be there "
            "twice:\n  "
            + "\n  ".join(shortened(differences))
            + "\nLeave them out, or give what is new under other names."
        )
    return tuple(source for source in sources if place_of(source.url) not in there)


def _difference(
    source: SourceFile, pieces: Iterable[PieceRecord], options: ReadOptions
) -> str | None:
    for piece in pieces:
        made = piece.source
        if source.size != made.size:
            return f"{source.url}: {made.size} bytes in the dataset, {source.size} now"
        version = source.version
        if version is None:
            version = identify(source, Path(source.url), span=piece.span, options=options).version
        if version != made.version:
            return f"{source.url}: content {made.version} in the dataset, {version} now"
    return None
