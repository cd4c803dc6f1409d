"""Bounding what lies on scratch before its turn comes."""

import threading
from collections.abc import Callable

from streaming_ext.errors import StoppedError

_LOOK_SECONDS = 0.5


class Room:
    """So many bytes of downloaded files that nobody works on yet; one file may always be there.

    Args:
        limit: in bytes.
        stopped: whether the run is being stopped, so that nobody waits any longer.
    """

    def __init__(self, limit: int, stopped: Callable[[], bool]) -> None:
        self._limit = limit
        self._stopped = stopped
        self._held: dict[int, int] = {}
        self._changed = threading.Condition()

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        with self._changed:
            return sum(self._held.values())

    def take(self, part: int, size: int) -> None:
        """Wait until a part's file may be fetched.

        Raises:
            StoppedError: the run was stopped meanwhile.
        """
        with self._changed:
            while self._held and sum(self._held.values()) + size > self._limit:
                if self._stopped():
                    raise StoppedError("the run was stopped")
                self._changed.wait(_LOOK_SECONDS)
            self._held[part] = size

    def give_back(self, part: int) -> None:
        """Somebody works on the part now, or it failed; again is no error."""
        with self._changed:
            self._held.pop(part, None)
            self._changed.notify_all()
