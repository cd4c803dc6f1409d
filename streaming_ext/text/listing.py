"""Listing of source files: patterns and URLs become one sorted list."""

import os
import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.record import SourceIdentity
from streaming_ext.store.locations import is_utf8, shown_path
from streaming_ext.text.formats import has_known_suffix, known_suffixes, require_a_format
from streaming_ext.text.sources.datasets import made_by_datasets
from streaming_ext.text.sources.find import files_of
from streaming_ext.text.sources.patterns import Takes, is_pattern
from streaming_ext.text.sources.source_file import SourceFile

_CONTROL = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # would control a terminal or a log
_LONGEST_NAME = 4096  # characters of a URL; no path on Linux is longer
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(?:@[\w./-]+)?")


def list_sources(
    patterns: Iterable[str],
    *,
    max_files: int | None = None,
    hub_config: str | None = None,
    any_name: bool = False,
) -> list[SourceFile]:
    """Find the source files, each once, sorted by URL; files of datasets are left out.

    Args:
        patterns: files, folders (all files of known formats in them, however deep), glob and brace
            patterns; on disk or as s3://, gs://, az://, https:// or hf:// URLs; or a dataset of
            the Hub, `ORG/NAME`.
        max_files: the number of files to keep, the first ones; all by default.
        any_name: true to take all files of folders, not only files of known formats.
        hub_config: the configuration of a dataset of the Hub.

    Raises:
        UsageError: a pattern matches nothing, a scheme is not supported, or one file has two
            names.
        StorageError: a server refuses, or does not answer (`TransientStorageError`).
    """
    takes: Takes = (lambda _: True) if any_name else has_known_suffix
    found: dict[str, SourceFile] = {}
    made = made_by_datasets()
    used_config = False
    for pattern in patterns:
        if _is_repository(pattern, hub_config):
            from streaming_ext.text.sources.hub import list_configuration

            matches = list_configuration(pattern, hub_config, takes)
            used_config = True
        else:
            matches = files_of(pattern, takes)
        if not matches:
            raise UsageError(f"{pattern}: {_why_nothing(pattern)}")
        others = [match for match in matches if not made(match)]
        found |= {source.url: source for source in others}
        if not others:
            raise UsageError(
                f"{pattern}: no file but those of a dataset that shardmill made. Name the text."
            )
    if hub_config is not None and not used_config:
        raise UsageError(
            f"--hub-config {hub_config} goes with a dataset of the Hub, ORG/NAME; the sources are "
            f"{', '.join(patterns)}."
        )
    check_names(found.values())
    chosen = sorted(found.values())[:max_files]
    if not any_name:
        for source in chosen:
            require_a_format(source)
    return chosen


def listed_again(identity: SourceIdentity) -> SourceFile:
    """Return a recorded source as it is listed now.

    Raises:
        SourceError: the file is gone.
        StorageError: the server refuses or does not answer.
    """
    if identity.version.startswith(("sha256:", "git:")):  # its URL names the commit
        return SourceFile(url=identity.url, size=identity.size, version=identity.version)
    try:
        (now,) = list_sources([identity.url])
    except UsageError as error:
        raise SourceError(f"{identity.url}: gone ({error})") from error
    return now


def check_names(sources: Iterable[SourceFile]) -> None:
    """Refuse unsafe names, and a local file with two names, for example by a link.

    A name is unsafe if it would control a terminal or a log, or lead out of its folder.

    Raises:
        UsageError: a name is unsafe, or a file has two; the message names the file, or both.
    """
    names: dict[str, str] = {}
    real = cache(os.path.realpath)
    for source in sorted(sources):
        url, path = source.url, source.local_path
        if (
            not is_utf8(url)
            or any(unicodedata.category(character) in _CONTROL for character in url)
            or (path is None and {".", ".."} & set(url.partition("://")[2].split("/")))
            or len(url) > _LONGEST_NAME
        ):
            raise UsageError(
                f"{shown_path(url[:200])}: the name of this source file is not UTF-8, holds "
                "control characters, leads out of its folder, or is too long. Rename it."
            )
        if path is None:
            continue
        target = os.path.realpath(path) if path.is_symlink() else f"{real(path.parent)}/{path.name}"
        first = names.setdefault(target, url)
        if first != url:
            raise UsageError(
                f"{url} is the same file as {first}, by a link, and would be taken twice. "
                "Leave out one of them."
            )


def _is_repository(pattern: str, hub_config: str | None) -> bool:
    if not _REPOSITORY.fullmatch(pattern) or pattern.startswith("."):
        return False
    return hub_config is not None or not Path(pattern.partition("/")[0]).exists()


def _why_nothing(pattern: str) -> str:
    """Explain why a pattern names no file, and which files of a folder are sources."""
    if is_pattern(pattern):
        return "no file matches this pattern. (Quote it, so that the shell does not expand it.)"
    return (
        f"no such file, and no folder of this name holds a {known_suffixes()} file. Name files of "
        "other formats, or pass --format."
    )
