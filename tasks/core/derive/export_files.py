"""Where the bytes of an export go: whole files, pieces of shared ones, or into hashes alone."""

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import xxhash

from streaming_ext.base.errors import ScratchError
from streaming_ext.store import Put
from tasks.core.derive.export_format import Buffer, Sink
from tasks.core.derive.export_records import Piece

# Stays in the cache of a core from hash to write; and of a file that several processes write into,
# the system lets one at a time.
_AT_ONCE = 2**20
_BEGUN_AT = 2**23  # bytes that the disk is asked to begin with while more are made


_SYNCED_AT_ONCE = 4  # files


class _Hashed:
    """Bytes that are hashed and passed on.

    Attributes:
        size: how many there were.
    """

    def __init__(self, path: str, start: int, ended: Callable[[Piece], None]) -> None:
        self._path, self._start, self._ended = path, start, ended
        self._digest = xxhash.xxh3_128()
        self.size = 0

    def write(self, data: Buffer) -> None:
        view = memoryview(data)  # type: ignore[arg-type]  # of an array: only from 3.12 on
        if not view.nbytes:
            return
        view = view.cast("B")
        for start in range(0, len(view), _AT_ONCE):
            some = view[start : start + _AT_ONCE]
            self._digest.update(some)
            self._pass_on(some)
            self.size += len(some)

    def close(self) -> None:
        self._ended(
            Piece(
                path=self._path,
                start=self._start,
                size=self.size,
                xxh128=self._digest.hexdigest(),
            )
        )

    def _pass_on(self, view: memoryview) -> None:
        """Bytes, which go where `start` and those before them say."""


class _Written(_Hashed):
    """A file, or a piece of one, on this host."""

    def __init__(
        self, path: str, start: int, ended: Callable[[Piece], None], file: Path, *, shared: bool
    ) -> None:
        super().__init__(path, start, ended)
        self._file = file
        self._begun = start  # before this the disk was asked to begin
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | (0 if shared else os.O_TRUNC)
            self._opened = os.fdopen(os.open(file, flags, 0o666), "wb", buffering=0)
        except OSError as error:
            raise _cannot_write(file, error) from error

    def _pass_on(self, view: memoryview) -> None:
        at = self._start + self.size
        if self._opened.closed:
            return  # given up: a library's destructor writes what it still holds
        try:
            while len(view):
                written = os.pwrite(self._opened.fileno(), view, at)
                view, at = view[written:], at + written
            if at - self._begun >= _BEGUN_AT:
                self._begin(at)
        except OSError as error:
            raise _cannot_write(self._file, error) from error

    def close(self) -> None:
        if self._opened.closed:
            return
        try:
            self._begin(self._start + self.size)
        except OSError as error:
            raise _cannot_write(self._file, error) from error
        finally:
            self._opened.close()
        super().close()

    def _begin(self, end: int) -> None:
        """Have the disk begin with all before `end`: there is less to wait for then.

        Linux writes what is "not needed", and keeps in memory what it is writing.
        """
        if end > self._begun:
            size = end - self._begun
            os.posix_fadvise(self._opened.fileno(), self._begun, size, os.POSIX_FADV_DONTNEED)
            self._begun = end

    def abandon(self) -> None:
        """Close it where that was not done: it is of no use."""
        self._opened.close()


def _sync(path: Path, how: Callable[[int], None]) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            how(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(file: Path, error: OSError) -> ScratchError:
    return ScratchError(f"Cannot write to scratch {file}: {(error.strerror or '').lower()}.")


class WrittenOut:
    """Files on scratch, each put in place when it is whole; shared ones in a folder of their own.

    Attributes:
        pieces: what was written.
    """

    def __init__(self, scratch: Path, assembly: Path, put: Put) -> None:
        self._scratch, self._assembly, self._put = scratch, assembly, put
        self.pieces: list[Piece] = []
        self._sinks: list[_Written] = []
        self._shared: set[Path] = set()

    def settle(self) -> None:
        """Have on disk what was written of shared files: a record may say so from then on.

        Once a file, however many pieces of it were written, and several at the same time: most of
        it is waiting for the journal, which serves all that wait. Whole files are synced as they
        are put in place.

        Raises:
            ScratchError: the disk did not take it.
        """
        with ThreadPoolExecutor(_SYNCED_AT_ONCE, thread_name_prefix="shardmill-sync") as threads:
            list(threads.map(partial(_sync, how=os.fdatasync), sorted(self._shared)))
            folders = {file.parent for file in self._shared}
            list(threads.map(partial(_sync, how=os.fsync), sorted(folders)))
        self._shared.clear()

    def abandon(self) -> None:
        """Close what a failure left open: a worker lives on."""
        for sink in self._sinks:
            sink.abandon()

    def file(self, path: str) -> Sink:
        """A whole file."""

        def ended(piece: Piece) -> None:
            self.pieces.append(piece)
            self._put(path, self._scratch / path)

        return self._begun(_Written(path, 0, ended, self._scratch / path, shared=False))

    def piece(self, path: str, start: int) -> Sink:
        """Some bytes of a shared file."""
        file = self._assembly / path
        self._shared.add(file)
        return self._begun(_Written(path, start, self.pieces.append, file, shared=True))

    def _begun(self, sink: _Written) -> _Written:
        self._sinks.append(sink)
        return sink


class SinkFile(io.RawIOBase):
    """What libraries take for an open file; the sink stays open when they close it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Append bytes."""
        self._sink.write(data)
        return len(data)


class HashedOut:
    """Nothing but hashes of what would be written.

    Attributes:
        pieces: what would be written.
    """

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def file(self, path: str) -> Sink:
        """A whole file."""
        return _Hashed(path, 0, self.pieces.append)

    def piece(self, path: str, start: int) -> Sink:
        """Some bytes of a shared file."""
        return _Hashed(path, start, self.pieces.append)
