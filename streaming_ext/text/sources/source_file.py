"""One source file, as it was listed."""

import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class SourceFile:
    """One file as it was listed; part numbers follow the sorted order of `url`.

    Attributes:
        url: absolute path of a local file, or a URL; one of the Hub holds the commit.
        size: the size of the file in bytes.
        version: pins the content of a remote file: `sha256:`, `git:`, `etag:`, ...; None for a
            local one, which is hashed when it is read.
        beside: pins other files that a remote one is read with, if there are any.
        modified: when a local one was last modified, in nanoseconds since 1970.
    """

    url: str
    size: int
    version: str | None = None
    beside: str = ""
    modified: int | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Short name for people."""
        return self.url.rsplit("/", 1)[-1]

    @property
    def pin(self) -> str | None:
        """Pins a remote file and those that it is read with; None for a local one."""
        return f"{self.version} beside:{self.beside}" if self.beside else self.version

    @property
    def remote(self) -> bool:
        """True if its bytes must be fetched."""
        return is_remote(self.url)

    @property
    def local_path(self) -> Path | None:
        """Its path on this machine; None if it must be fetched."""
        return None if self.remote else Path(self.url)


def is_remote(url: str) -> bool:
    """Say whether a source's URL is not a path of this machine."""
    return "://" in url


def by_numbers(url: str) -> tuple[tuple[str | int, ...], str]:
    """A key that sorts names by the numbers in them: `chunk-0-2` before `chunk-0-10`."""
    words = re.split(r"(\d+)", url)
    return tuple(int(word) if word.isdigit() else word for word in words), url
