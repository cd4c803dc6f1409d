"""The version of a format, `MAJOR.MINOR`, and what is said of data made by a newer shardmill.

A change that older readers cannot follow raises the major number; a new field or a new value raises
the minor one. A writer puts down the lowest version that has all it uses, so the bytes of what uses
nothing new stay as they are. Version 1.0 is written as the number 1, the later ones as text:

    "format": 1        is 1.0
    "format": "1.3"    is 1.3: a reader of 1.2 refuses it and says that it is newer
"""

import re
from dataclasses import dataclass

from streaming_ext.errors import NewerVersionError

_TEXT = re.compile(r"(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class FormatVersion:
    """One version; versions compare in their order."""

    major: int
    minor: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def read(cls, value: object) -> "FormatVersion | None":
        """What stands in a file, None where that is no version."""
        if type(value) is int and value > 0:
            return cls(value)
        if isinstance(value, str) and (match := _TEXT.fullmatch(value)):
            return cls(int(match[1]), int(match[2]))
        return None


def refuse_newer(value: object, known: FormatVersion, *, what: str) -> None:
    """Refuse what a newer shardmill made, before any other fault is looked for.

    Args:
        value: what the data say that their version is; anything that is no version is let through.
        known: the newest version that is read here.
        what: the data's name for the message.

    Raises:
        NewerVersionError: their version is above `known`.
    """
    found = FormatVersion.read(value)
    if found is not None and found > known:
        raise NewerVersionError(
            f"{what} was made by a newer shardmill (format {found}), this one reads up to format "
            f"{known}. Update shardmill here."
        )
