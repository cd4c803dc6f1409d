"""The source files of a run, looked into before any work."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from streaming_ext.errors import SourceError, UsageError
from streaming_ext.text.formats import format_of
from streaming_ext.text.listing import list_sources
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from tasks.core.config import ShardConfig
from tasks.core.imports.sources import list_token_files
from tasks.core.planning.surroundings import made_by_output

_IO_THREADS = 8
_LISTING_SECONDS = 60.0
_MOST_LINES = 20
_MOST_LOOKED_INTO = 1000  # of local files
# One listing serves the check at the command line and the flow behind it: servers count requests.
_listings: dict[tuple[object, ...], tuple[float, tuple[SourceFile, ...]]] = {}


def check_sources(config: ShardConfig) -> tuple[SourceFile, ...]:
    """List the sources and look into them for the text column, before any work.

    Raises:
        UsageError: nothing matches, or no file has such a column of texts.
        StorageError: a server refuses or does not answer.
    """
    return look_into_sources(config)[0]


def look_into_sources(config: ShardConfig) -> tuple[tuple[SourceFile, ...], tuple[str, ...]]:
    """All sources, and what is wrong with those that have no such text column.

    A file that cannot be used is left to its own part, which fails alone, wherever it lies. Of
    remote files only the first is looked into: there may be thousands, and servers count requests;
    of local ones the first thousand.

    Raises:
        UsageError: nothing matches, or none of the files that were looked into can be used; names
            them all.
        StorageError: a server refuses or does not answer.
    """
    options = config.read_options
    key = (config.sources, config.max_files, config.hub_config, config.output, options)
    listed, known = _listings.pop(key, (0.0, ()))
    if known and time.monotonic() - listed < _LISTING_SECONDS:
        return known, ()
    without = made_by_output(config.output)
    sources = (
        list_sources(
            config.sources,
            max_files=config.max_files,
            hub_config=config.hub_config,
            any_name=options.source_format is not None,
            without=without,
        )
        if options.ids is None
        else list_token_files(config.sources, options.ids, without=without)
    )

    def check(source: SourceFile) -> str | None:
        try:
            format_of(source.url, options).look(SourceFileBytes(source), options)
        except SourceError:  # damaged: said when its turn comes
            return None
        except UsageError as error:
            return str(error)
        return None

    remote = [source for source in sources if source.remote]
    local = [source for source in sources if not source.remote]
    looked_into = local[:_MOST_LOOKED_INTO] + remote[:1]
    with ThreadPoolExecutor(_IO_THREADS) as threads:
        wrong = tuple(words for words in threads.map(check, looked_into) if words is not None)
    if wrong and len(wrong) == len(looked_into):
        raise UsageError("\n".join(shortened([*dict.fromkeys(wrong)])))  # of a set, each once
    if remote and not local:
        _listings[key] = (time.monotonic(), tuple(sources))
    return tuple(sources), wrong


def shortened(lines: Sequence[str]) -> list[str]:
    """The first of many lines, and how many more there are."""
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"... and {more:,} more"] if more > 0 else [])]
