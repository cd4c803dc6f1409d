"""Texts and figures for people.

In texts of unknown origin, what would control a terminal, or is markup to one of Prefect's user
interfaces, is escaped.
"""

import re
import unicodedata
from datetime import timedelta

from rich.console import Console
from rich.text import Text

_JOINERS = "\u200c\u200d"  # within words and emoji
_CONTROL = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
# Markup of Markdown and HTML, and what readers of Markdown turn into a link; but a text that is a
# URL may stay one.
_MARKUP = re.compile(
    r"[<>\[\]*`|~&]|((?<=http)(?<!\Ahttp)|(?<=https)(?<!\Ahttps)|(?<=ftp)(?<!\Aftp)):(?=//)"
    r"|(?<=\bwww)\.",
    re.IGNORECASE,
)


def visible(text: str, *, keep: str = "") -> str:
    """`text` with control, format and private characters escaped, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in keep
        or character in _JOINERS
        or unicodedata.category(character) not in _CONTROL
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def say(console: Console, text: str, *, style: str = "", keep: str = "") -> None:
    """Print a line unchanged: it is not wrapped, and nothing in it is markup."""
    console.print(Text(visible(text, keep=keep), style=style), soft_wrap=True)


def plain(text: str) -> str:
    r"""`text` on one line without markup: `<b>` is shown as `\u003cb\u003e`.

    Prefect's older interface takes cells of a table for Markdown and the newer one does not, so
    there is no quoting that suits both.
    """
    return _MARKUP.sub(lambda found: f"\\u{ord(found[0]):04x}", visible(text))


def shortened(name: str, most: int) -> str:
    """At most this many letters of a name: its end, which tells paths apart."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def counted(number: int, noun: str) -> str:
    """A number and its noun: `1 file`, `2,400 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def option_name(field: str) -> str:
    """The option that sets a field of a configuration: `--shard-size`."""
    return f"--{field.replace('_', '-')}"


def count_text(number: float) -> str:
    """Three digits and a unit: 12.3k, 1.5T."""
    for unit in ("", "k", "M", "G"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}T"


def bytes_text(number: float) -> str:
    """Bytes in units of 1000, as disks and networks are sold: 64.0 kB, 31.9 MB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number:.0f} B"


def duration_text(seconds: float) -> str:
    """Hours, minutes and seconds: 0:01:30."""
    return str(timedelta(seconds=round(seconds)))
