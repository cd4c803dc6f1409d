"""Texts of unknown origin, made safe to print: what would steer a terminal is spelled out."""

import unicodedata

_JOINERS = "\u200c\u200d"  # within words and emoji; they steer nothing
_STEERING = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def visible(text: str, *, keep: str = "") -> str:
    """`text` with control, format and private characters as escapes, but for those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in keep
        or character in _JOINERS
        or unicodedata.category(character) not in _STEERING
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )
