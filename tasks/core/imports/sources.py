"""The files of a token set."""

from collections.abc import Callable, Iterable

from streaming_ext.errors import UsageError
from streaming_ext.storage.dialects.choice import OBJECT_STORES
from streaming_ext.text.documents.options import IdOptions
from streaming_ext.text.formats import TOKEN_SETS
from streaming_ext.text.listing import check_name, require_one_name
from streaming_ext.text.sources import SourceFile, by_numbers, is_remote
from streaming_ext.text.sources.local import match_local
from streaming_ext.text.sources.patterns import Takes
from streaming_ext.text.token_sets.files.set_file import forget_listings


def list_token_files(
    patterns: Iterable[str],
    options: IdOptions,
    *,
    without: Callable[[SourceFile], bool] = lambda source: False,
) -> list[SourceFile]:
    """Find the files of a token set, each once, in the order of the numbers in their names.

    Args:
        patterns: files, folders (all files of the format in them, however deep), glob and brace
            patterns, on disk or as s3://, gs://, az:// or hf:// URLs.
        options: name the format.
        without: which ones are left out, such as those of the output.

    Raises:
        UsageError: a pattern matches nothing, or lies where no files are listed; a type of ids is
            given that the files tell.
        StorageError: a server refuses or does not answer.
    """
    reads = TOKEN_SETS[options.set_format]
    if options.dtype is not None and reads.tells_type:
        raise UsageError(f"--dtype is of no use with {options.set_format}, whose files tell it.")
    forget_listings()
    found: dict[str, SourceFile] = {}
    for pattern in patterns:
        matches: list[SourceFile] = []
        for called in reads.called(pattern):
            matches = [s for s in _match(called, reads.is_in_folder) if not without(s)]
            if matches:
                break
        else:
            raise UsageError(
                f"{pattern}: no {' or '.join(reads.suffixes)} file of {options.set_format} there."
            )
        for source in matches:
            check_name(source)
            found[source.url] = reads.pinned(source, options) if source.remote else source
    require_one_name(found.values())
    return sorted(found.values(), key=lambda source: by_numbers(source.url))


def _match(pattern: str, takes: Takes) -> list[SourceFile]:
    scheme = pattern.partition("://")[0]
    if not is_remote(pattern) or scheme == "file":
        return match_local(pattern.removeprefix("file://"), takes)
    if scheme in OBJECT_STORES:
        from streaming_ext.text.sources.objects import list_objects

        return list_objects(pattern, takes)
    if scheme == "hf":
        from streaming_ext.text.sources.hub import list_files

        return list_files(pattern, takes)
    raise UsageError(
        f"{pattern}: token sets are read from disks, s3://, gs://, az:// and hf://, where files "
        "beside each other are found. Copy it to one of them first."
    )
