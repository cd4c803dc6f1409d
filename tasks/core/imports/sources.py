"""The files of a token set."""

from collections.abc import Iterable

from streaming_ext.errors import UsageError
from streaming_ext.text.documents.options import TokenSetName
from streaming_ext.text.sources import SourceFile, by_numbers, is_remote
from streaming_ext.text.sources.listing import check_name, require_one_name
from streaming_ext.text.sources.local import match_local
from streaming_ext.text.token_sets.formats import token_set_format


def list_token_files(patterns: Iterable[str], set_format: TokenSetName) -> list[SourceFile]:
    """Find the files of a token set, each once, in the order of the numbers in their names.

    Args:
        patterns: files, folders (all files of the format in them, however deep), glob and brace
            patterns, on disk.
        set_format: name of the format.

    Raises:
        UsageError: a pattern matches nothing, or does not lie on this machine.
    """
    reads = token_set_format(set_format)
    found: dict[str, SourceFile] = {}
    for pattern in patterns:
        if is_remote(pattern):
            raise UsageError(
                f"{pattern}: token sets are read on this machine, where files beside each other "
                "are found. Copy it to a folder first."
            )
        matches = match_local(pattern, reads.is_in_folder)
        if not matches:
            raise UsageError(
                f"{pattern}: no {' or '.join(reads.suffixes)} file of {set_format} there."
            )
        for source in matches:
            check_name(source)
            found[source.url] = source
    require_one_name(found.values())
    return sorted(found.values(), key=lambda source: by_numbers(source.url))
