"""Files that lie beside remote ones: those of a folder, listed once a process, each pinned.

What is read of them names the version that was listed, so a listing that is kept is never stale:
a file that changed since is an error.
"""

from collections.abc import Mapping
from functools import lru_cache

from streaming_ext.store.buckets import Bucket, split_url
from streaming_ext.text.sources.objects import list_prefix
from streaming_ext.text.sources.source_file import SourceFile

_FOLDERS = 64  # whose listings are kept


def files_in(folder: str) -> Mapping[str, SourceFile]:
    """All files of a folder, and below it, by their names from there, with `/` between.

    Args:
        folder: its URL, without a slash at the end.

    Raises:
        StorageError: a server refuses or does not answer.
    """
    return _all(folder)


def is_in(folder: str, name: str) -> bool:
    """Whether a folder holds a file; raises what `files_in` does, and lists little."""
    if folder.startswith("hf://"):  # whose listings are of folders
        return name in _all(folder)
    return name in _objects(folder, name)


def forget() -> None:
    """Have all folders listed anew."""
    _all.cache_clear()


@lru_cache(_FOLDERS)
def _all(folder: str) -> Mapping[str, SourceFile]:
    if not folder.startswith("hf://"):
        return _objects(folder, "")
    from streaming_ext.text.sources.hub import list_files

    found = list_files(f"{folder}/", lambda name: True)
    return {source.url.removeprefix(f"{folder}/"): source for source in found}


def _objects(folder: str, begin: str) -> dict[str, SourceFile]:
    """Those objects below a folder whose names begin so."""
    scheme, _, place = folder.partition("://")
    name, _, key = place.partition("/")
    split_url(f"{scheme}://{name}")
    base = f"{key}/" if key else ""
    found = list_prefix(Bucket(scheme=scheme, name=name), f"{base}{begin}")
    return {key.removeprefix(base): source for key, source in found.items()}
