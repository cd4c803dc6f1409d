"""Signs of life that pass over the storage of a dataset, which every host of a run reaches.

Who lives puts a file again and again, each time with another content; who watches compares what it
reads with what it read before, on its own clock, so that no clock of another host needs to be
right. It works alike on a shared disk and in an object store.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from streaming_ext.errors import StorageError, UsageError
from tasks.core.storage import Storage

BEAT_SECONDS = 2.0
SILENCE_VARIABLE = "SHARDMILL_SILENCE"
_SILENT_SECONDS = 20.0


def silent_seconds() -> float:
    """How long a file may stay the same before whoever puts it counts as gone, in seconds.

    Raises:
        UsageError: the environment holds no such number.
    """
    text = os.environ.get(SILENCE_VARIABLE, "")
    try:
        seconds = float(text or _SILENT_SECONDS)
    except ValueError:
        seconds = -1
    if not 3 * BEAT_SECONDS <= seconds < 3600:
        raise UsageError(
            f"{SILENCE_VARIABLE} is {text!r}, expected seconds from {3 * BEAT_SECONDS:.0f} on, "
            "below 3600."
        )
    return seconds


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
    """Whether a file that somebody keeps putting still changes.

    Attributes:
        last: what was read last.
        limit: seconds without a change after which whoever puts it counts as gone.
    """

    def __init__(self, now: float | None = None) -> None:
        self.last: bytes | None = None
        self.limit = silent_seconds()
        self._changed = time.monotonic() if now is None else now

    def listen_anew(self) -> None:
        """Forget how long nothing was heard: nothing could be."""
        self._changed = time.monotonic()

    def silent_for(self, content: bytes | None, now: float | None = None) -> float:
        """Seconds for which what is read has been the same; `content` is what was read now."""
        now = time.monotonic() if now is None else now
        if content != self.last:
            self.last, self._changed = content, now
        return now - self._changed
