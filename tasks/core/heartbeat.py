"""Signs of life that pass over the storage of a dataset, which every host of a run reaches.

Who lives puts a file again and again, each time with another content; who watches compares what it
reads with what it read before, on its own clock, so that no clock of another host needs to be
right. It works alike on a shared disk and in an object store.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from streaming_ext.errors import StorageError
from tasks.core.storage import Storage

BEAT_SECONDS = 2.0
SILENT_SECONDS = 20.0  # without another content: whoever should put it is gone


class Heartbeat:
    """Puts a file every few seconds from a thread, until the block ends.

    Args:
        storage: the dataset's.
        path: of the file.
        content: what it holds now; of this and the number of the beat the file is made.
    """

    def __init__(self, storage: Storage, path: str, content: Callable[[int], bytes]) -> None:
        self._storage = storage
        self._path = path
        self._content = content
        self._beats = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="shardmill-heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(BEAT_SECONDS)

    def beat(self) -> None:
        """Put the file now.

        Raises:
            StorageError: it cannot be put.
        """
        with self._lock:
            self._beats += 1
            self._storage.put(self._path, self._content(self._beats))

    def _keep(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            # Where storage fails for longer, the work itself meets it and tells.
            with suppress(StorageError):
                self.beat()


class Pulse:
    """Whether a file that somebody keeps putting still changes."""

    def __init__(self, now: float | None = None) -> None:
        self.last: bytes | None = None
        self._changed = time.monotonic() if now is None else now

    def silent_for(self, content: bytes | None, now: float | None = None) -> float:
        """Seconds for which what is read has been the same; `content` is what was read now."""
        now = time.monotonic() if now is None else now
        if content != self.last:
            self.last, self._changed = content, now
        return now - self._changed
