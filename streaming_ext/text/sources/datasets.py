"""Datasets among the sources: no file of a dataset is a source of another dataset."""

import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from streaming_ext.base.errors import (
    CorruptDatasetError,
    NewerVersionError,
    SourceError,
    StorageError,
    UsageError,
)
from streaming_ext.format.layout import BUILD, MADE, MANIFEST, documents_path, record_path
from streaming_ext.format.reading import manifest_of
from streaming_ext.store.locations import local_path
from streaming_ext.text.sources.find import files_of
from streaming_ext.text.sources.patterns import folder_of, is_pattern, matching
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from streaming_ext.text.sources.source_file import SourceFile, is_remote


def is_dataset(folder: str) -> bool:
    """Return whether a folder, given as a path or URL, is a dataset, published or started.

    Raises:
        StorageError: a server does not answer.
    """
    try:
        for path in (MANIFEST, BUILD):
            url = f"{folder.rstrip('/')}/{path}"
            if not is_remote(url) and not Path(url).is_file():
                continue
            for source in files_of(url, lambda name: True):
                data = SourceFileBytes(source).read(0, source.size)
                if path == BUILD or manifest_of(data, where=url):
                    return True
    except NewerVersionError:
        return True
    except (CorruptDatasetError, SourceError, UsageError):  # a file of something else, or none
        return False
    except StorageError as error:
        if error.transient:
            raise
        return False  # access is refused, so the content is not known
    return False


def made_by_datasets() -> Callable[[SourceFile], bool]:
    """Return a test for files of datasets, wherever they lie, whichever pattern names them."""
    known = cache(is_dataset)
    real = cache(os.path.realpath)

    def made(source: SourceFile) -> bool:
        folder, _, name = source.url.rpartition("/")
        names = [*(folder if source.remote else real(folder)).split("/"), name]
        return not source.url.startswith(("http://", "https://")) and any(
            known("/".join(names[:depth])) for depth in range(1, len(names)) if names[depth] in MADE
        )

    return made


def require_apart(output: str, patterns: Iterable[str]) -> None:
    """Refuse a new output if the patterns of its own sources would match its files.

    Raises:
        UsageError: a pattern matches; the message names it.
    """
    names = [f"{_plain(output)}/{path}" for path in (documents_path(0), record_path(0))]
    for pattern in patterns:
        if _any_matches(names, _plain(pattern)) and not is_dataset(output):
            raise UsageError(
                f"The output {output} lies inside its own sources, {pattern}: a later run would "
                "find its files there. Choose a folder elsewhere."
            )


def _plain(location: str) -> str:
    """Return a URL, or an absolute path in which links are followed up to the first wildcard."""
    if is_remote(location) and not location.startswith("file://"):
        return location.rstrip("/")
    path = str(local_path(location.removeprefix("file://")).absolute())
    if not is_pattern(path) or Path(path).exists():
        return os.path.realpath(path)
    folder = folder_of(path)
    return os.path.realpath(folder or "/") + path[len(folder) :]


def _any_matches(names: list[str], pattern: str) -> bool:
    """Return whether a pattern names one of some files, or a folder above them."""
    try:
        return any(
            matching(names, one, lambda name: True, each=False)
            for one in (pattern, *([f"{pattern}/**"] if is_pattern(pattern) else []))
        )
    except UsageError:  # the listing reports it
        return False
