"""The source files of a run: they are listed, checked before any work, and cut into parts.

The recorded sources of a dataset are compared with the current files of a run.
"""

import heapq
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.manifest import NodePartition
from streaming_ext.format.record import PartRecord, SpanRecord
from streaming_ext.format.schema import content_hash
from streaming_ext.format.shuffled import Source
from streaming_ext.format.spec import IdOptions, ReadOptions
from streaming_ext.store import Storage
from streaming_ext.text.fetch import identify
from streaming_ext.text.formats import TOKEN_SETS, can_be_cut
from streaming_ext.text.listing import check_names, list_sources
from streaming_ext.text.look import look_into, shortened
from streaming_ext.text.options import PartOptions
from streaming_ext.text.parts import Part, SourceSpan, arrange, sizes_of
from streaming_ext.text.sources import SourceFile, by_numbers
from streaming_ext.text.sources.find import files_of
from streaming_ext.text.sources.patterns import Takes
from streaming_ext.text.token_sets.set_file import forget_listings
from tasks.core.config import ExtendConfig, ShardConfig
from tasks.core.shuffle.spills import SpillRecord, source_numbers

_log = logging.getLogger(__name__)


def balanced_groups(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Divide things into groups of about the same size; if there are enough things, none is empty.

    The largest remaining thing goes to the first of the smallest groups (longest processing time
    first: no group is larger than 4/3 of the best possible):

        sizes 50, 10, 10, 30, 20; 2 groups
        groups [0, 1] and [2, 3, 4], 60 bytes each

    Args:
        sizes: the sizes of the things, in bytes.
        count: the number of groups.

    Returns:
        The numbers of the things of each group, ascending.
    """
    groups: list[list[int]] = [[] for _ in range(count)]
    smallest = [(0, 0, number) for number in range(count)]
    for thing in sorted(range(len(sizes)), key=lambda thing: -sizes[thing]):
        size, length, number = smallest[0]
        groups[number].append(thing)
        heapq.heapreplace(smallest, (size + sizes[thing], length + 1, number))
    return [sorted(group) for group in groups]


def own_partition(
    parts: Sequence[Part], *, nodes: int | None, rank: int | None
) -> tuple[tuple[Part, ...], NodePartition | None]:
    """Return the parts of this node and its partition; without nodes, all parts and None.

    Raises:
        UsageError: there are fewer parts than nodes.
    """
    if nodes is None or rank is None:
        return tuple(parts), None
    if len(parts) < nodes:
        raise UsageError(
            f"{len(parts)} parts for {nodes} nodes: some would hold nothing. Lower --nodes, "
            "--min-part-size or --part-size, or cut the files into smaller ones."
        )
    listed = "\n".join(_line(part) for part in parts)
    partition = NodePartition(rank=rank, nodes=nodes, sources=content_hash(listed.encode()))
    numbers = balanced_groups(sizes_of(parts), nodes)[rank]
    return tuple(Part(own, parts[number].spans) for own, number in enumerate(numbers)), partition


def _line(part: Part) -> str:
    """Return the line of a part in the list on which all nodes must agree."""

    def of(source_span: SourceSpan) -> str:
        source = source_span.source
        span = "" if source_span.span is None else f"\t{source_span.span[0]}-{source_span.span[1]}"
        return f"{source.url}\t{source.size}\t{source.pin}{span}"

    return "\t+\t".join(of(source_span) for source_span in part.spans)


def parts_of(
    sources: Sequence[SourceFile], sizes: PartOptions, options: ReadOptions
) -> tuple[Part, ...]:
    """Cut sources into parts, which depend on the sources and the configuration alone.

    Args:
        sources: the source files, in order.
        sizes: the sizes of parts.
        options: the options for reading the sources.

    Raises:
        StorageError: a server refuses or does not answer.
    """
    return arrange(
        sources,
        part_size=int(sizes.part_size),
        min_part_size=int(sizes.min_part_size),
        may_be_cut=lambda source: can_be_cut(source, options),
    )


def find_sources(
    config: ShardConfig | ExtendConfig, options: ReadOptions, *, may_lack: bool = False
) -> tuple[SourceFile, ...]:
    """List the source files, and check that they have the columns that are read, before any work.

    Args:
        config: the configuration, which names the files.
        options: the options for reading the files.
        may_lack: True if all files may lack columns.

    Raises:
        UsageError: nothing matches, or the files cannot be used; see `look_into`.
        StorageError: a server refuses or does not answer.
    """
    sources = list_sources(
        config.sources,
        max_files=config.max_files if isinstance(config, ShardConfig) else None,
        hub_config=config.hub_config,
        any_name=options.source_format is not None,
    )
    warn_of_doubtful(look_into(sources, options, may_lack=may_lack))
    return tuple(sources)


def warn_of_doubtful(files: Sequence[str]) -> None:
    """Warn of files that may hold no text; each part reports its own."""
    if files:
        count = f"{len(files):,} file{'s' if len(files) > 1 else ''}"
        _log.warning("%s may hold no such text:\n  %s", count, "\n  ".join(shortened(files)))


def list_token_files(patterns: Iterable[str], options: IdOptions) -> list[SourceFile]:
    """List the files of token sets, each once, in the order of the numbers in their names.

    Args:
        patterns: files, folders (all files of the format in them, however deep), glob and brace
            patterns, on disk or as s3://, gs://, az:// or hf:// URLs.
        options: the options of the import.

    Raises:
        UsageError: a pattern matches nothing, or names a place where files cannot be listed; or
            `dtype` is given, though the files state it.
        StorageError: a server refuses or does not answer.
    """
    reads = TOKEN_SETS[options.set_format]
    if options.dtype is not None and reads.states_type:
        raise UsageError(
            f"--dtype does not go with {options.set_format}: its files say the type. Leave it out."
        )
    forget_listings()
    found: dict[str, SourceFile] = {}
    for pattern in patterns:
        found_by = (_match(called, reads.is_in_folder) for called in reads.called(pattern))
        matches = next(filter(None, found_by), None)
        if matches is None:
            raise UsageError(
                f"{pattern}: no {' or '.join(reads.suffixes)} file of {options.set_format} there."
            )
        for source in matches:
            found[source.url] = reads.pinned(source, options) if source.remote else source
    check_names(found.values())
    return sorted(found.values(), key=lambda source: by_numbers(source.url))


def _match(pattern: str, takes: Takes) -> list[SourceFile]:
    if pattern.startswith(("http://", "https://")):
        raise UsageError(
            f"{pattern}: token sets are read from disks, s3://, gs://, az:// and hf://, where "
            "files beside each other are found. Copy it to one of them first."
        )
    return files_of(pattern, takes)


Pair = tuple[SourceSpan, SpanRecord]  # a span of this run, and its record


def require_same_parts(
    storage: Storage,
    records: Mapping[int, PartRecord | SpillRecord],
    parts: Sequence[Part],
    options: ReadOptions,
) -> None:
    """Refuse to resume a dataset that was made from other sources or other parts.

    Local files are read and hashed.

    Args:
        storage: the storage of the dataset.
        records: the records of the finished parts.
        parts: the parts of this run, by number.
        options: the options for reading the sources.

    Raises:
        ConfigMismatchError: they differ; the message says how.
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
    """Refuse to resume a shuffled dataset whose table of sources differs from this run's sources.

    Raises:
        ConfigMismatchError: they differ; the message says how.
    """
    spans, lines = joined_spans(parts), []
    if len(spans) != len(table):
        lines.append(f"the output has {len(table)} source files, this run {len(spans)}")
    pairs = zip(spans, spans_of(table), strict=False)
    _refuse(
        storage,
        [*lines, *_differences(pairs, None)],  # the table has versions of whole files
        f"Use the old sources, or another --output. {advice}",
    )


def joined_spans(parts: Sequence[Part]) -> list[SourceSpan]:
    """Return the sources of some parts by number, each as one span that joins its spans."""
    spans: list[SourceSpan] = []
    for part, numbers in zip(parts, source_numbers(parts), strict=True):
        for given, number in zip(part.spans, numbers, strict=True):
            source, (begin, end) = given.source, given.span or (0, given.source.size)
            if number < len(spans):  # another span of the same file
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
    """Return the sources that a dataset does not hold; check that the others have not changed.

    Local files that the dataset holds are read and hashed.

    Args:
        storage: the storage of the dataset.
        made_of: the spans that the dataset was made from.
        sources: the sources of this run.
        options: the options for reading the sources.

    Raises:
        ConfigMismatchError: the dataset holds other bytes of a file; the message names these files.
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
    """Return the sources of a shuffled dataset in the form of a record."""
    return [SpanRecord(source=each.identity, span=each.span, rows=each.rows) for each in table]


def _refuse(storage: Storage, lines: Sequence[str], advice: str) -> None:
    if lines:
        listed = "\n  ".join(shortened(lines))
        raise ConfigMismatchError(f"{storage} was made from other sources:\n  {listed}\n{advice}")


def _differences(pairs: Iterable[Pair], options: ReadOptions | None) -> list[str]:
    found = mapped_ahead(lambda pair: difference(*pair, options), pairs)
    return [words for words in found if words]


def difference(given: SourceSpan, made: SpanRecord, options: ReadOptions | None) -> str:
    """Describe how a span differs from its record; return "" if it holds the same bytes.

    Args:
        given: the current span; a local file is read and hashed.
        made: the span in the record.
        options: the options for reading the file, if `made` pins only the bytes of the span.
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
    """Return a URL without its Hub revision, which changes whenever the Hub's dataset grows."""
    return re.sub(r"^(hf://[^@]+)@[^/]+/", r"\1/", url)
