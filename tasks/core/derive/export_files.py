"""Where the bytes of an export go: whole files, spans of shared files, or into hashes alone."""

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import xxhash

from streaming_ext.store import Put
from streaming_ext.store.scratch import writing_scratch
from tasks.core.derive.export_records import FileSpan

Buffer = bytes | memoryview | npt.NDArray[Any]
# A block stays in the cache of a core from hash to write. Several processes may write into one
# file, and the system lets one of them at a time.
_BLOCK = 2**20
_FLUSHED_AT_ONCE = 2**23  # bytes that the disk starts to write while more are made
_SYNCED_AT_ONCE = 4  # files


class Sink(io.RawIOBase):
    """A file, or a span of one, hashed as it is written from its beginning to its end.

    Attributes:
        size: bytes written so far.
    """

    def __init__(
        self,
        path: str,
        start: int,
        closed: Callable[[FileSpan], None],
        file: Path | None = None,
        flags: int = 0,
    ) -> None:
        """Begin a span.

        Args:
            path: of the file, below the root of the export.
            start: position of the first byte in it.
            closed: called with the finished span.
            file: on this host; without it nothing is kept but the hash.
            flags: how it is opened, besides writing.
        """
        self.size = 0
        self._path, self._start, self._on_close = path, start, closed
        self._digest = xxhash.xxh3_128()
        self._file, self._descriptor, self._flushed = file, -1, start
        if file is not None:
            with writing_scratch(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | flags, 0o666)

    def writable(self) -> bool:
        """Yes: libraries ask."""
        return True

    def write(self, data: Buffer) -> int:  # type: ignore[override]
        """Append bytes; returns how many."""
        view = memoryview(data)  # type: ignore[arg-type]  # of an array: only from 3.12 on
        if not view.nbytes:
            return 0
        view = view.cast("B")
        for start in range(0, len(view), _BLOCK):
            block = view[start : start + _BLOCK]
            self._digest.update(block)
            if self._file is not None and self._descriptor >= 0:
                with writing_scratch(self._file):
                    self._write_block(block, self._start + self.size)
            self.size += len(block)
        return len(view)

    def _write_block(self, block: memoryview, position: int) -> None:
        while len(block):
            written = os.pwrite(self._descriptor, block, position)
            block, position = block[written:], position + written
        if position - self._flushed >= _FLUSHED_AT_ONCE:
            self._start_flush(position)

    def _start_flush(self, end: int) -> None:
        """Have the disk start to write all before `end`: `fdatasync` waits for less then.

        Linux writes what is "not needed", and keeps in memory what it is writing.
        """
        size = end - self._flushed
        if size:  # 0 would stand for the rest of the file
            os.posix_fadvise(self._descriptor, self._flushed, size, os.POSIX_FADV_DONTNEED)
        self._flushed = end

    def close(self) -> None:
        """End the span."""
        if self.closed:
            return
        super().close()
        if self._file is not None:
            if self._descriptor < 0:
                return
            with writing_scratch(self._file):
                try:
                    self._start_flush(self._start + self.size)
                finally:
                    self.abandon()
        digest = self._digest.hexdigest()
        self._on_close(FileSpan(path=self._path, start=self._start, size=self.size, xxh128=digest))

    def abandon(self) -> None:
        """Close the file alone; what libraries write from now on goes nowhere."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __exit__(self, kind: object, *_: object) -> None:
        """End the span, unless it failed."""
        if kind is None:
            self.close()


class HashedOut:
    """Keeps only the hashes of what is written.

    Attributes:
        spans: what was written.
    """

    def __init__(self) -> None:
        self.spans: list[FileSpan] = []

    def file(self, path: str) -> Sink:
        """A whole file."""
        return Sink(path, 0, self.spans.append)

    def span(self, path: str, start: int) -> Sink:
        """The bytes of a shared file from `start` on."""
        return Sink(path, start, self.spans.append)

    def put(self, path: str, data: Buffer) -> None:
        """Write a whole file."""
        with self.file(path) as sink:
            sink.write(data)

    def put_span(self, path: str, start: int, data: Buffer) -> None:
        """Write bytes of a shared file."""
        with self.span(path, start) as sink:
            sink.write(data)


class ScratchOut(HashedOut):
    """Files on scratch, each put in place once it is finished; shared files stay in their folder.

    Args:
        scratch: folder of the files that belong to one part.
        assembly: folder of the shared files.
        put: puts a file in place.
    """

    def __init__(self, scratch: Path, assembly: Path, put: Put) -> None:
        super().__init__()
        self._scratch, self._assembly, self._put = scratch, assembly, put
        self._sinks: list[Sink] = []
        self._shared: set[Path] = set()

    def file(self, path: str) -> Sink:
        """A whole file."""

        def closed(span: FileSpan) -> None:
            self.spans.append(span)
            self._put(path, self._scratch / path)

        return self._opened(Sink(path, 0, closed, self._scratch / path, os.O_TRUNC))

    def span(self, path: str, start: int) -> Sink:
        """The bytes of a shared file from `start` on; other parts write the rest."""
        file = self._assembly / path
        self._shared.add(file)
        return self._opened(Sink(path, start, self.spans.append, file))

    def _opened(self, sink: Sink) -> Sink:
        self._sinks.append(sink)
        return sink

    def sync(self) -> None:
        """Flush shared files to disk, so that a record may list their spans.

        Each file once, and several at the same time: most of it is waiting for the journal, which
        serves all who wait. Whole files are flushed when they are put in place.

        Raises:
            ScratchError: the disk did not take it.
        """
        with ThreadPoolExecutor(_SYNCED_AT_ONCE, thread_name_prefix="shardmill-sync") as threads:
            list(threads.map(partial(_sync, how=os.fdatasync), sorted(self._shared)))
            folders = {file.parent for file in self._shared}
            list(threads.map(partial(_sync, how=os.fsync), sorted(folders)))

    def abandon(self) -> None:
        """Close what a failure left open: the worker process lives on."""
        for sink in self._sinks:
            sink.abandon()


def _sync(path: Path, how: Callable[[int], None]) -> None:
    with writing_scratch(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            how(descriptor)
        finally:
            os.close(descriptor)
