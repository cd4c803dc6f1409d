"""A stream that is read in a thread of its own, some way ahead of who uses it."""

from collections.abc import Callable
from queue import Empty, Full, Queue
from threading import Event, Thread

_CHUNK_BYTES = 2**22
_CHUNKS = 6  # that wait to be used, beside one in hand
_POLL_SECONDS = 0.2


class ReadAhead:
    """Unpacking goes on while what is unpacked is used: both take about one core's time.

    It begins with the thread only when so much was asked for that it is worth one.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._chunks: Queue[bytes | BaseException] = Queue(_CHUNKS)
        self._rest = b""
        self._used = 0
        self._ended = False
        self._error: BaseException | None = None
        self._stop = Event()
        self._thread: Thread | None = None

    def read(self, size: int) -> bytes:
        """The next bytes, none at the end; raises what reading raised."""
        if self._thread is None and self._used < _CHUNK_BYTES:
            data = self._read(size)
            self._used += len(data)
            return data
        if self._thread is None:
            self._thread = Thread(target=self._run, name="read ahead", daemon=True)
            self._thread.start()
        pieces, have = [self._rest], len(self._rest)
        while have < size and not self._ended:
            chunk = self._chunks.get()
            if isinstance(chunk, BaseException):
                self._ended, self._error = True, chunk
                break
            self._ended = not chunk
            pieces.append(chunk)
            have += len(chunk)
        if not have and self._error is not None:
            raise self._error
        data = b"".join(pieces) if len(pieces) > 1 else pieces[0]
        data, self._rest = (data[:size], data[size:]) if have > size else (data, b"")
        return data

    def _run(self) -> None:
        while not self._stop.is_set():
            chunk: bytes | BaseException
            try:
                chunk = self._read(_CHUNK_BYTES)
            except BaseException as error:  # noqa: BLE001 - raised where it is read
                chunk = error
            while not self._stop.is_set():
                try:
                    self._chunks.put(chunk, timeout=_POLL_SECONDS)
                    break
                except Full:
                    continue
            if not chunk or isinstance(chunk, BaseException):
                return

    def close(self) -> None:
        """End the thread, before what it reads is closed."""
        self._stop.set()
        while self._thread is not None and self._thread.is_alive():
            try:
                self._chunks.get_nowait()  # it may wait for room
            except Empty:
                self._thread.join(_POLL_SECONDS)
