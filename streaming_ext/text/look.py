"""Checks of source files before any work: that they hold text, and the columns to read."""

from collections.abc import Sequence
from itertools import chain

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.source_format import Lacking
from streaming_ext.text.formats import format_of
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.source_bytes import SourceFileBytes

_MOST_LINES = 20
_MOST_FILES = 1000


def look_into(
    sources: Sequence[SourceFile], options: ReadOptions, *, may_lack: bool = False
) -> tuple[str, ...]:
    """Refuse sources if no file holds text, or if no file has one of the other columns.

    One remote file that has all columns is enough: there may be thousands, and servers count
    requests. At most a thousand local and a thousand remote files are looked into.

    Args:
        sources: the source files.
        options: the columns that are read.
        may_lack: true to accept columns that all files lack.

    Returns:
        a message for each file without text: such a file is left to its own part, which fails
        alone, wherever it lies.

    Raises:
        UsageError: no file that was looked into can be used (the message names the files), or a
            column is in none of them.
        StorageError: a server refuses or does not answer.
    """

    def look(source: SourceFile) -> Lacking | str:
        try:
            return format_of(source.url, options).check(SourceFileBytes(source), options)
        except SourceError:  # damaged: its own part reports that
            return {}
        except UsageError as error:
            return str(error)

    local = [source for source in sources if not source.remote][:_MOST_FILES]
    remote = [source for source in sources if source.remote][:_MOST_FILES]
    looks = chain(mapped_ahead(look, local), map(look, remote[:1]), mapped_ahead(look, remote[1:]))
    wrong: list[str] = []
    lacking: Lacking | None = None  # columns that all usable files lack
    for number, found in enumerate(looks):
        if isinstance(found, str):
            wrong.append(found)
        elif lacking is None:
            lacking = found
        else:
            lacking = {name: words for name, words in lacking.items() if name in found}
        if number >= len(local) and lacking == {}:
            break
    if lacking is None and wrong:
        raise UsageError("\n".join(shortened([*dict.fromkeys(wrong)])))  # a set repeats its error
    if lacking and not may_lack:
        others = "" if len(sources) == 1 else " Neither has any other file."
        raise UsageError("\n".join(f"{words}{others}" for words in lacking.values()))
    return tuple(wrong)


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first lines, and a line with the number of those left out."""
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"... and {more:,} more"] if more > 0 else [])]
