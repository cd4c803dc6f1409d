"""The files of a chain, and what a state knows them by."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streaming_ext.errors import SourceError
from streaming_ext.text.sources import SourceFile

_END_BYTES: Final = 4096  # at the beginning and at the end of a file
_MOST: Final = 4096  # files that are looked into


@dataclass(frozen=True, slots=True)
class Files:
    """Files as they were listed.

    Attributes:
        sources: they.
        known_by: their names and sizes, the version that a server tells, and how local files begin
            and end: those may be copied, which changes their times. A change in the middle that
            leaves the size is not seen, nor is one of a file that is none of 4,096 looked into.
    """

    sources: Sequence[SourceFile]
    known_by: str

    @classmethod
    def of(cls, sources: Sequence[SourceFile]) -> "Files":
        """Look at files.

        Raises:
            SourceError: one is gone.
        """
        told = hashlib.sha256()
        for source in sources:
            told.update(f"{source.name} {source.size} {source.version}\n".encode())
        for source in sources[:: -(-len(sources) // _MOST)]:
            if source.local_path is not None:
                told.update(_ends(source.local_path))
        return cls(sources, told.hexdigest()[:16])


def _ends(path: Path) -> bytes:
    """The beginning and the end of a file."""
    try:
        with path.open("rb") as file:
            begin = file.read(_END_BYTES)
            file.seek(max(file.seek(0, 2) - _END_BYTES, 0))
            return begin + file.read(_END_BYTES)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}).") from error
