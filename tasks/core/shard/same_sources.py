"""Whether the parts that are recorded were made from what a run would make them from now."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streaming_ext.base.errors import ConfigMismatchError
from streaming_ext.format.record import PartRecord, PieceRecord
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store import Storage
from streaming_ext.text.identity import identify
from streaming_ext.text.parts.part import Part, Piece
from tasks.core.shard.sources import shortened
from tasks.core.shuffle.records import SpillRecord

_IO_THREADS = 8


def require_same_sources(
    storage: Storage,
    records: Mapping[int, PartRecord | SpillRecord],
    parts: Sequence[Part],
    options: ReadOptions,
    *,
    instead: str = "the old sources, or another --output",
) -> None:
    """Refuse to go on with a dataset that was begun from other sources, or cut another way.

    Local files are read and hashed.

    Args:
        storage: names the dataset in messages.
        records: of the parts that are done.
        parts: that are asked for, by number.
        options: what is read of the sources.
        instead: what to use where they differ.

    Raises:
        ConfigMismatchError: naming what differs.
    """
    differences: list[str] = []
    to_hash: list[tuple[Piece, PieceRecord]] = []
    cut_differs = False
    for number, record in sorted(records.items()):
        made_of = record.made_of
        if number >= len(parts):
            url = record.source.url
            differences.append(f"part {number:05}: the output has {url}, this run has none")
            continue
        pieces = parts[number].pieces
        same_first = pieces[0].source.url == made_of[0].source.url
        if same_first and _cut(made_of) != [(piece.source.url, piece.span) for piece in pieces]:
            cut_differs = True
            differences.append(
                f"part {number:05}: the output has {record.made_of_text}, this run "
                f"{parts[number].source}"
            )
            continue
        for piece, made in zip(pieces, made_of, strict=False):
            if (found := _difference(number, piece, made)) is not None:
                differences.append(found)
            elif piece.source.version is None:
                to_hash.append((piece, made))
    with ThreadPoolExecutor(_IO_THREADS) as threads:
        changes = threads.map(lambda pair: _changed(pair[0], pair[1], options), to_hash)
        differences += [words for words in changes if words is not None]
    if differences:
        advice = "the --part-size and --min-part-size of before, " if cut_differs else ""
        raise ConfigMismatchError(
            f"{storage} was made from other sources:\n  "
            + "\n  ".join(shortened(differences))
            + f"\nUse {advice}{instead}."
        )


def _cut(made_of: Sequence[PieceRecord]) -> list[tuple[str, tuple[int, int] | None]]:
    return [(piece.source.url, piece.span) for piece in made_of]


def _difference(number: int, piece: Piece, made: PieceRecord) -> str | None:
    source, identity = piece.source, made.source
    if source.url != identity.url:
        return (
            f"part {number:05}: the output has {identity.url}, this run {source.url}"
            + _revision_hint(identity.url, source.url)
        )
    if source.size != identity.size:
        return f"{identity.url}: {identity.size} bytes in the output's record, {source.size} now"
    if source.pin is not None and source.pin != identity.version:
        return (
            f"{identity.url}: content {identity.version} in the output's record, {source.pin} now"
        )
    return None


def _changed(piece: Piece, made: PieceRecord, options: ReadOptions) -> str | None:
    """What is said of a local piece whose bytes are others now."""
    now = identify(piece.source, Path(piece.source.url), span=piece.span, options=options)
    if now.version == made.source.version:
        return None
    return f"{now.url}: content {made.source.version} in the output's record, {now.version} now"


def _revision_hint(before: str, now: str) -> str:
    """What to do where a dataset of the Hub only moved on to another commit."""
    if not (before.startswith("hf://") and "@" in before and "@" in now):
        return ""
    (root, _, old), (new_root, _, _) = before.partition("@"), now.partition("@")
    commit = old.partition("/")[0]
    return f" (to go on with what was begun, pass {root}@{commit}/...)" if root == new_root else ""
