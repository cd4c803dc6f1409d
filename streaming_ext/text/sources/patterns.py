"""Glob and brace patterns over names that a server lists."""

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from fsspec.utils import glob_translate

from streaming_ext.base.errors import UsageError

Match = TypeVar("Match")
Takes = Callable[[str], bool]  # returns whether a file of this name, in a folder, is a source

MOST_NAMES = 100_000  # to which the braces of one pattern may expand
_GLOB = re.compile(r"[*?\[{]")


def is_pattern(text: str) -> bool:
    """Return whether a name holds wildcards or braces."""
    return bool(_GLOB.search(text))


def alternatives(pattern: str) -> list[str]:
    """Expand the braces of a pattern to names; a pattern without braces stays alone.

    Raises:
        UsageError: there are too many names.
    """
    if "{" not in pattern:
        return [pattern]
    import bracex

    try:
        return list(bracex.iexpand(pattern, limit=MOST_NAMES))
    except bracex.ExpansionLimitException as error:
        raise UsageError(
            f"{pattern}: braces for more than {MOST_NAMES:,} names. Use a wildcard."
        ) from error


def find_each(
    pattern: str, find: Callable[[str], Iterable[Match]], *, each: bool = True
) -> list[Match]:
    """Return all that `find` returns for the alternatives of a pattern.

    Args:
        pattern: a pattern with or without braces.
        find: a function that returns the matches of one alternative.
        each: true to require matches of every alternative if any has some; otherwise a missing
            file among many would go unnoticed.

    Raises:
        UsageError: an alternative has no matches; the message names the first one.
    """
    found, missing = list[Match](), list[str]()
    for one in alternatives(pattern):
        matches = list(find(one))
        found += matches
        if not matches:
            missing.append(one)
    if each and found and missing:
        more = f" ({len(missing) - 1:,} more are missing)" if len(missing) > 1 else ""
        raise UsageError(
            f"{pattern}: the braces name {missing[0]}, and there is no such file{more}. "
            "Leave out missing files."
        )
    return found


def folder_of(pattern: str) -> str:
    """Return the deepest folder that holds all matches of a pattern, without a slash at its end."""
    return _GLOB.split(pattern, maxsplit=1)[0].rpartition("/")[0]


def matching(names: Iterable[str], pattern: str, takes: Takes, *, each: bool = True) -> list[str]:
    """Return the names that a pattern selects: itself, a folder's sources, or all that match.

    Args:
        names: the names of all files.
        pattern: a name, with or without wildcards and braces.
        takes: a function that returns whether a file in a folder is a source.
        each: see `find_each`.

    Raises:
        UsageError: a name is missing, braces expand to too many names, or `**` is part of a name.
    """
    known = dict.fromkeys(names)  # keeps the order, and is quick to search

    def find(one: str) -> Iterable[str]:
        if one in known:
            return [one]
        if is_pattern(one):
            return filter(re.compile(glob_translate(one)).match, known)
        folder = f"{one.rstrip('/')}/" if one else ""
        below = (name for name in known if name.startswith(folder) and takes(name))
        return (name for name in below if "/." not in f"/{name[len(folder) :]}")

    if pattern in known:
        return [pattern]
    try:
        found = set(find_each(pattern, find, each=each))
    except ValueError as error:
        raise UsageError(f"{pattern}: {error}.") from error
    return [name for name in known if name in found]
