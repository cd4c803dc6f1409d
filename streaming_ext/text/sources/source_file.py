"""One source file, as it was listed."""

import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class SourceFile:
    """One file as it was listed; part numbers follow the sorted order of `url`.

    Attributes:
        url: the absolute path of a local file, or a URL; a URL of the Hub holds the commit.
        size: the size of the file in bytes.
        version: the pin of a remote file's content: `sha256:`, `git:`, `etag:`, ...; None for a
            local file, which is hashed when it is read.
        beside: the pin of other files that a remote file is read with, if there are any.
        modified: the time at which a local file was modified, in nanoseconds since 1970.
    """

    url: str
    size: int
    version: str | None = None
    beside: str = ""
    modified: int | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Short name for display."""
        return self.url.rsplit("/", 1)[-1]

    @property
    def pin(self) -> str | None:
        """Pin of a remote file and of the files that it is read with; None for a local file."""
        return f"{self.version} beside:{self.beside}" if self.beside else self.version

    @property
    def remote(self) -> bool:
        """True if its bytes must be fetched."""
        return is_remote(self.url)

    @property
    def local_path(self) -> Path | None:
        """Path on this machine; None if the file must be fetched."""
        return None if self.remote else Path(self.url)


def is_remote(url: str) -> bool:
    """Return whether a source's URL is not a path of this machine."""
    return "://" in url


def by_numbers(url: str) -> tuple[tuple[str | int, ...], str]:
    """Return a key that sorts names by their numbers: `chunk-0-2` before `chunk-0-10`."""
    words = re.split(r"(\d+)", url)
    return tuple(int(word) if word.isdigit() else word for word in words), url
