"""How far a check is, told from any thread; what its listener raises ends the check."""

import threading
from collections.abc import Callable
from typing import Self

from streaming_ext.errors import StoppedError


class Progress:
    """The bytes that are done, of all that are expected; ends what is done within, if it fails."""

    def __init__(self, listener: Callable[[int, int], None]) -> None:
        """Expect nothing yet.

        Args:
            listener: called with the bytes that are done and all bytes.
        """
        self._listener, self._lock = listener, threading.Lock()
        self._done = self._expected = 0
        self._stopped = False
        self._raised: BaseException | None = None

    def expect(self, num_bytes: int) -> None:
        """There is more to do."""
        self._expected += num_bytes

    def done(self, num_bytes: int) -> None:
        """Some more is done.

        Raises:
            StoppedError: the check ends, in another thread.
        """
        with self._lock:
            if self._stopped:
                raise StoppedError("verifying was stopped")
            self._done += num_bytes
            try:
                self._listener(self._done, self._expected)
            except BaseException as error:
                self._stopped, self._raised = True, error
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End what other threads do where something was raised, by the listener first of all."""
        self._stopped = error is not None
        if isinstance(error, StoppedError) and self._raised is not None:
            raise self._raised from None
