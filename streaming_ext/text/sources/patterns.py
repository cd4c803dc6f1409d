"""Glob and brace patterns over names that a server lists."""

import re
from collections.abc import Callable, Iterable

import bracex

from streaming_ext.text.documents.formats import has_known_suffix

_GLOB = re.compile(r"[*?\[{]")
_WILDCARD = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^\]/]+\]")


def is_pattern(text: str) -> bool:
    """Whether a name holds wildcards or braces."""
    return bool(_GLOB.search(text))


def folder_of(pattern: str) -> str:
    """The deepest folder that holds all matches of a pattern, without a slash at its end."""
    fixed = pattern[: match.start()] if (match := _GLOB.search(pattern)) else pattern
    return fixed.rpartition("/")[0]


Takes = Callable[[str], bool]  # whether a file of this name, in a folder, is a source


def matching(names: Iterable[str], pattern: str, takes: Takes = has_known_suffix) -> list[str]:
    """The names that a pattern means: itself, a folder's source files, or what it matches."""
    names = list(names)
    if pattern in names:
        return [pattern]
    folder = f"{pattern.rstrip('/')}/" if pattern else ""
    if not is_pattern(pattern):
        return [
            name
            for name in names
            if name.startswith(folder)
            and takes(name)
            and not any(part.startswith(".") for part in name[len(folder) :].split("/"))
        ]
    expressions = [re.compile(_translate(one)) for one in bracex.iexpand(pattern)]
    return [name for name in names if any(e.fullmatch(name) for e in expressions)]


def _translate(pattern: str) -> str:
    pieces, last = [], 0
    for match in _WILDCARD.finditer(pattern):
        pieces.append(re.escape(pattern[last : match.start()]))
        last = match.end()
        word = match[0]
        if word == "**/":
            pieces.append("(?:[^/]+/)*")
        elif word == "**":
            pieces.append(".*")
        elif word == "*":
            pieces.append("[^/]*")
        elif word == "?":
            pieces.append("[^/]")
        else:
            inner = word[1:-1]
            negated = inner.startswith("!")
            inner = inner.removeprefix("!").replace("\\", r"\\").replace("^", r"\^")
            pieces.append(f"[{'^' if negated else ''}{inner}]")
    return "".join(pieces) + re.escape(pattern[last:])
