"""What is read of a source file: part of the configuration that decides the bytes."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """Which text a document is, in files of every format.

    Attributes:
        column: that holds the text.
    """

    column: str
