"""The files of one pattern, wherever they lie."""

from streaming_ext.base.errors import UsageError
from streaming_ext.store.buckets import OBJECT_STORES
from streaming_ext.text.sources.local import match_local
from streaming_ext.text.sources.patterns import Takes
from streaming_ext.text.sources.source_file import SourceFile


def files_of(pattern: str, takes: Takes) -> list[SourceFile]:
    """Find the files of one pattern.

    Args:
        pattern: a path or URL, with or without wildcards.
        takes: a function that returns whether a file in a folder is a source, by its name.

    Raises:
        UsageError: the scheme is not supported.
    """
    scheme, separator, rest = pattern.partition("://")
    if not separator or scheme == "file":
        return match_local(rest if separator else pattern, takes)
    if scheme in OBJECT_STORES:
        from streaming_ext.text.sources.objects import list_objects

        return list_objects(pattern, takes)
    if scheme == "hf":
        from streaming_ext.text.sources.hub import list_files

        return list_files(pattern, takes)
    if scheme in {"http", "https"}:
        from streaming_ext.text.sources.web import list_url

        return list_url(pattern)
    raise UsageError(
        f"{pattern}: {scheme}:// is not supported as source; expected a file or folder, hf://, "
        "s3://, gs://, az:// or https://."
    )
