"""The bytes of a local or remote source file: any range, without fetching all of it."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Protocol

from streaming_ext.base.git_lfs import MOST_POINTER_BYTES, not_a_pointer
from streaming_ext.text.documents.files import LocalBytes
from streaming_ext.text.sources.source_file import SourceFile


class Reader(Protocol):
    """A reader of one remote file."""

    def read(self, start: int, end: int) -> bytes:
        """Read the bytes [start, end)."""
        ...

    def stream(self, start: int) -> Iterator[bytes]:
        """Yield all bytes from `start` on."""
        ...

    def headers(self) -> Mapping[str, str]:
        """Return the headers that may hold hashes of the whole file, in lower case."""
        ...


def open_reader(source: SourceFile) -> Reader:
    """Open a reader of a remote file, by the scheme of its URL."""
    scheme = source.url.partition("://")[0]
    if scheme == "hf":
        from streaming_ext.text.sources.hub import HubReader

        return HubReader(source)
    if scheme in {"http", "https"}:
        from streaming_ext.text.sources.web import WebReader

        return WebReader(source)
    from streaming_ext.text.sources.objects import ObjectReader

    return ObjectReader(source)


class SourceFileBytes:
    """One source file, read in ranges; see `SourceBytes`."""

    def __init__(self, source: SourceFile) -> None:
        self.name, self.size = source.url, source.size
        self._source = source

    @cached_property
    def _reader(self) -> Reader:
        return open_reader(self._source)

    def read(self, start: int, end: int) -> bytes:
        """Read the bytes [start, end).

        Raises:
            SourceError: the file is gone or shorter than listed.
            StorageError: a server refuses or does not answer.
            UsageError: the file is a pointer of Git LFS.
        """
        local = self._source.local_path
        if local is not None:
            return LocalBytes(local, self.name).read(start, end)
        data = self._reader.read(start, end) if start < end else b""  # an empty file has no range
        is_small = start == 0 and self.size <= MOST_POINTER_BYTES
        return not_a_pointer(data, self.name) if is_small else data
