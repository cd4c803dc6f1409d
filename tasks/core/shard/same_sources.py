"""Whether the parts that are recorded were made from what a run would make them from now."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streaming_ext.base.errors import ConfigMismatchError
from streaming_ext.format.record import PartRecord, SpanRecord
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store import Storage
from streaming_ext.text.identity import identify
from streaming_ext.text.parts.part import Part, SourceSpan
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
    to_hash: list[tuple[SourceSpan, SpanRecord]] = []
    cut_differs = False
    for number, record in sorted(records.items()):
        made_of = record.made_of
        if number >= len(parts):
            url = record.source.url
            differences.append(f"part {number:05}: the output has {url}, this run has none")
            continue
        spans = parts[number].spans
        same_first = spans[0].source.url == made_of[0].source.url
        if same_first and _cut(made_of) != [
            (source_span.source.url, source_span.span) for source_span in spans
        ]:
            cut_differs = True
            differences.append(
                f"part {number:05}: the output has {record.made_of_text}, this run "
                f"{parts[number].source}"
            )
            continue
        for source_span, made in zip(spans, made_of, strict=False):
            if (found := _difference(number, source_span, made)) is not None:
                differences.append(found)
            elif source_span.source.version is None:
                to_hash.append((source_span, made))
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


def _cut(made_of: Sequence[SpanRecord]) -> list[tuple[str, tuple[int, int] | None]]:
    return [(source_span.source.url, source_span.span) for source_span in made_of]


def _difference(number: int, source_span: SourceSpan, made: SpanRecord) -> str | None:
    source, identity = source_span.source, made.source
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


def _changed(source_span: SourceSpan, made: SpanRecord, options: ReadOptions) -> str | None:
    """What is said of a local span whose bytes are others now."""
    now = identify(
        source_span.source, Path(source_span.source.url), span=source_span.span, options=options
    )
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
