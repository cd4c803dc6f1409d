"""Glob and brace patterns over names that a server lists."""

import re
from collections.abc import Callable, Iterable

import bracex

from streaming_ext.base.errors import UsageError

MOST_NAMES = 100_000  # that the braces of one pattern may expand to
_GLOB = re.compile(r"[*?\[{]")
_WILDCARD = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^\]/]+\]")


def is_pattern(text: str) -> bool:
    """Whether a name holds wildcards or braces."""
    return bool(_GLOB.search(text))


def alternatives(pattern: str) -> list[str]:
    """The names that the braces of a pattern expand to; the pattern alone if it has none.

    Raises:
        UsageError: they are too many.
    """
    try:
        return list(bracex.iexpand(pattern, limit=MOST_NAMES))
    except bracex.ExpansionLimitException as error:
        raise UsageError(
            f"{pattern}: braces for more than {MOST_NAMES:,} names. Use a wildcard."
        ) from error


def require_each(pattern: str, missing: list[str]) -> None:
    """Refuse a pattern whose braces name missing files: nobody would notice that one is missing.

    Raises:
        UsageError: naming the first of them.
    """
    if missing:
        more = f" ({len(missing) - 1:,} more are missing)" if len(missing) > 1 else ""
        raise UsageError(
            f"{pattern}: the braces name {missing[0]}, and there is no such file{more}. "
            "Leave out missing files."
        )


def folder_of(pattern: str) -> str:
    """The deepest folder that holds all matches of a pattern, without a slash at its end."""
    fixed = pattern[: match.start()] if (match := _GLOB.search(pattern)) else pattern
    return fixed.rpartition("/")[0]


Takes = Callable[[str], bool]  # whether a file of this name, in a folder, is a source


def matching(names: Iterable[str], pattern: str, takes: Takes, *, each: bool = True) -> list[str]:
    """The names that a pattern selects: itself, a folder's source files, or all that match.

    Args:
        names: of all files.
        pattern: a name, or one with wildcards and braces.
        takes: whether a file in a folder is a source.
        each: whether all names that braces expand to must exist, if any does.

    Raises:
        UsageError: one is missing; or braces expand to too many names.
    """
    names = list(names)
    known = set(names)
    if pattern in known:
        return [pattern]
    found, missing = set[str](), list[str]()
    for one in alternatives(pattern) if is_pattern(pattern) else [pattern]:
        matches = [one] if one in known else _matching(names, one, takes)
        found.update(matches)
        if not matches:
            missing.append(one)
    if each and found:
        require_each(pattern, missing)
    return [name for name in names if name in found]


def _matching(names: list[str], pattern: str, takes: Takes) -> list[str]:
    folder = f"{pattern.rstrip('/')}/" if pattern else ""
    if not is_pattern(pattern):
        return [
            name
            for name in names
            if name.startswith(folder)
            and takes(name)
            and not any(part.startswith(".") for part in name[len(folder) :].split("/"))
        ]
    expression = re.compile(_translate(pattern))
    return [name for name in names if expression.fullmatch(name)]


def _translate(pattern: str) -> str:
    parts, last = [], 0
    for match in _WILDCARD.finditer(pattern):
        parts.append(re.escape(pattern[last : match.start()]))
        last = match.end()
        word = match[0]
        if word == "**/":
            parts.append("(?:[^/]+/)*")
        elif word == "**":
            parts.append(".*")
        elif word == "*":
            parts.append("[^/]*")
        elif word == "?":
            parts.append("[^/]")
        else:
            inner = word[1:-1]
            negated = inner.startswith("!")
            inner = inner.removeprefix("!").replace("\\", r"\\").replace("^", r"\^")
            parts.append(f"[{'^' if negated else ''}{inner}]")
    return "".join(parts) + re.escape(pattern[last:])
