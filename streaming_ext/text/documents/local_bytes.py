"""A source file whose bytes lie on this machine, read in ranges."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streaming_ext.errors import SourceError


class LocalBytes:
    """An open file; see `SourceBytes`."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self.name = name
        self.size = os.fstat(descriptor).st_size

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end).

        Raises:
            SourceError: the file is shorter than it was, or cannot be read.
        """
        pieces = []
        while start < end:
            try:
                data = os.pread(self._descriptor, end - start, start)
            except OSError as error:
                raise SourceError(f"{self.name}: cannot be read: {error.strerror}.") from error
            if not data:
                raise SourceError(f"{self.name}: became shorter while it was read. Run again.")
            pieces.append(data)
            start += len(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@contextmanager
def local_bytes(path: Path, *, name: str) -> Iterator[LocalBytes]:
    """Open a file; `name` is what messages call it.

    Raises:
        SourceError: it is gone, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise SourceError(f"{name}: the file is gone.") from error
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}.") from error
    try:
        yield LocalBytes(descriptor, name)
    finally:
        os.close(descriptor)
