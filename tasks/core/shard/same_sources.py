"""The comparison of a dataset's sources with those that a run is given, as they are now."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from streaming_ext.base.errors import ConfigMismatchError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.record import PartRecord, SpanRecord
from streaming_ext.format.shuffled import Source
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store import Storage
from streaming_ext.text.fetch import identify
from streaming_ext.text.look import shortened
from streaming_ext.text.parts import Part, SourceSpan
from streaming_ext.text.sources import SourceFile
from tasks.core.shuffle.records import SpillRecord, source_numbers

Pair = tuple[SourceSpan, SpanRecord]  # a span that is given, and what a record says of it


def require_same_parts(
    storage: Storage,
    records: Mapping[int, PartRecord | SpillRecord],
    parts: Sequence[Part],
    options: ReadOptions,
) -> None:
    """Refuse to resume a dataset that was made from other sources, or cut another way.

    Local files are read and hashed.

    Args:
        storage: the storage of the dataset.
        records: the records of the finished parts.
        parts: the parts of this run, by number.
        options: the text that is read of the sources.

    Raises:
        ConfigMismatchError: naming what differs.
    """
    lines: list[str] = []
    pairs: list[Pair] = []
    for number, record in sorted(records.items()):
        spans = parts[number].spans if number < len(parts) else ()
        if [span.span for span in spans] == [made.span for made in record.made_of]:
            pairs += zip(spans, record.made_of, strict=True)
        else:
            now = parts[number].source if spans else "has none"
            lines.append(f"part {number:05}: the output has {record.made_of_text}, this run {now}")
    _refuse(
        storage,
        [*lines, *_differences(pairs, options)],
        "Use the old sources, --part-size and --min-part-size, or another --output; to start "
        "another extension, remove runs/.build.json.",
    )


def require_same_table(
    storage: Storage, table: Sequence[Source], parts: Sequence[Part], *, advice: str
) -> None:
    """The same for a shuffled dataset, which lists its sources in a table.

    Raises:
        ConfigMismatchError: naming what differs.
    """
    spans, lines = joined_spans(parts), []
    if len(spans) != len(table):
        lines.append(f"the output has {len(table)} source files, this run {len(spans)}")
    pairs = zip(spans, spans_of(table), strict=False)
    _refuse(
        storage,
        [*lines, *_differences(pairs, None)],  # the table holds versions of complete files
        f"Use the old sources, or another --output. {advice}",
    )


def joined_spans(parts: Sequence[Part]) -> list[SourceSpan]:
    """Each source of some parts by its number, with the bytes of all its spans."""
    spans: list[SourceSpan] = []
    for part, numbers in zip(parts, source_numbers(parts), strict=True):
        for given, number in zip(part.spans, numbers, strict=True):
            source, (begin, end) = given.source, given.span or (0, given.source.size)
            if number < len(spans):  # a further span of the same file
                begin = (spans.pop().span or (0, 0))[0]
            is_all = (begin, end) == (0, source.size)
            spans.append(SourceSpan(source, None if is_all else (begin, end)))
    return spans


def new_sources(
    storage: Storage,
    made_of: Iterable[SpanRecord],
    sources: Sequence[SourceFile],
    options: ReadOptions,
) -> tuple[SourceFile, ...]:
    """The sources that a dataset does not hold; those that it holds must not have changed.

    Local files that it holds are read and hashed.

    Args:
        storage: the storage of the dataset.
        made_of: everything that the dataset was made from.
        sources: the sources of this run.
        options: the text that is read of them.

    Raises:
        ConfigMismatchError: the dataset holds a file with other bytes; names them all.
    """
    known: dict[str, list[SpanRecord]] = {}
    for made in made_of:
        known.setdefault(_without_revision(made.source.url), []).append(made)
    pairs = [
        (SourceSpan(replace(source, url=made.source.url), made.span), made)
        for source in sources
        for made in known.get(_without_revision(source.url), ())
    ]
    if lines := _differences(pairs, options):
        raise ConfigMismatchError(
            f"{storage} holds other bytes of these sources, so some of their texts would be in it "
            "twice:\n  "
            + "\n  ".join(shortened(lines))
            + "\nLeave them out, or give what is new under other names."
        )
    return tuple(source for source in sources if _without_revision(source.url) not in known)


def spans_of(table: Iterable[Source]) -> list[SpanRecord]:
    """The sources of a shuffled dataset as a record names them."""
    return [SpanRecord(source=each.identity, span=each.span, rows=each.rows) for each in table]


def _refuse(storage: Storage, lines: Sequence[str], advice: str) -> None:
    if lines:
        listed = "\n  ".join(shortened(lines))
        raise ConfigMismatchError(f"{storage} was made from other sources:\n  {listed}\n{advice}")


def _differences(pairs: Iterable[Pair], options: ReadOptions | None) -> list[str]:
    found = mapped_ahead(lambda pair: difference(*pair, options), pairs)
    return [words for words in found if words]


def difference(given: SourceSpan, made: SpanRecord, options: ReadOptions | None) -> str:
    """Describe how a span differs from its record; empty if it holds the same bytes.

    Args:
        given: the span as it is now; a local file is read and hashed.
        made: the span as the record has it.
        options: the text that is read of the file, if `made` pins only the bytes of the span.
    """
    source, known = given.source, made.source
    if source.url != known.url:
        words = f"the output has {known.url}, this run {source.url}"
        is_moved = _without_revision(source.url) == _without_revision(known.url)
        return f"{words} (pass the earlier revision to resume)" if is_moved else words
    if source.size != known.size:
        return f"{source.url}: {known.size} bytes in the dataset, {source.size} now"
    version = source.pin
    if version is None:
        version = identify(source, Path(source.url), span=given.span, options=options).version
    for name, had, now in (
        ("bytes", made.span, given.span),
        ("content", known.version, version),
    ):
        if had != now:
            return f"{source.url}: {name} {had} in the dataset, {now} now"
    return ""


def _without_revision(url: str) -> str:
    """A URL without the revision of the Hub, which changes whenever its dataset grows."""
    return re.sub(r"^(hf://[^@]+)@[^/]+/", r"\1/", url)
