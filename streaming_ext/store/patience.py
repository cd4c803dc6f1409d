"""The retry policy and the time limits of every request to a server."""

import os
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from streaming_ext.base.errors import TransientStorageError, UsageError

TIMEOUT_VARIABLE = "SHARDMILL_STORAGE_TIMEOUT"
_TIMEOUT_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_TRAINING_SECONDS = 30.0  # for which training retries a file, at the default timeout
_MAX_WAIT_SECONDS = 300.0  # the longest Retry-After of a server that is waited for
_SECONDS = re.compile(r"[0-9]{1,9}")
# The generator of `random` belongs to the training script, and forks share its state.
_JITTER = random.SystemRandom()


def timeout_seconds() -> float:
    """Return the seconds for which a server may stay silent.

    Raises:
        UsageError: the environment variable holds no valid number.
    """
    return seconds_of(TIMEOUT_VARIABLE, _TIMEOUT_SECONDS)


def seconds_of(variable: str, default: float, *, least: float = 0) -> float:
    """Return the seconds in an environment variable.

    Args:
        variable: the name of the variable.
        default: the seconds if it is not set.
        least: exclusive lower bound.

    Raises:
        UsageError: the variable holds no number between `least` and 3600.
    """
    text = os.environ.get(variable, "")
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = -1
    if not least < seconds < 3600:
        raise UsageError(f"{variable} is {text!r}, expected seconds between {least:g} and 3600.")
    return seconds


def connect_seconds(timeout: float) -> float:
    """Return the seconds for opening a connection, given those for which a server may be silent."""
    return min(timeout, _CONNECT_SECONDS)


def patience() -> float:
    """Return the factor of all pauses: 1 at the default timeout or above, less below it."""
    return min(1.0, timeout_seconds() / _TIMEOUT_SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """The number of attempts of a request, and the pauses between them.

    Attributes:
        attempts: the largest number of attempts, except during the first `seconds`.
        silences: the number of attempts that may end without any answer.
        first_pause: seconds before the second attempt; doubles up to `longest_pause`, with jitter.
        seconds: the time in which a request is retried regardless of the number of attempts.
    """

    attempts: int = 7
    silences: int = 3
    first_pause: float = 0.5
    longest_pause: float = 10.0
    seconds: float = 0.0

    @classmethod
    def usual(cls) -> "Retry":
        """Return the policy for sources and outputs; short timeouts shorten the pauses."""
        return cls(first_pause=0.5 * patience(), longest_pause=10.0 * patience())

    @classmethod
    def training(cls, retries: int, *, waited: float = 0.0) -> "Retry":
        """Return the policy for a file that training waits for: retry for at least half a minute.

        Args:
            retries: further attempts after the first; 0 for a single attempt.
            waited: seconds of the half minute that have already passed.
        """
        seconds = _TRAINING_SECONDS * patience() - waited if retries else 0.0
        return replace(cls.usual(), attempts=1 + retries, silences=1 + retries, seconds=seconds)

    def pause(self, attempt: int) -> float:
        """Return the seconds to wait after attempt 0, 1, ..."""
        pause: float = min(self.first_pause * 2 ** min(attempt, 30), self.longest_pause)
        return pause * _JITTER.uniform(0.5, 1.0)


class Attempts:
    """The failed attempts of one request.

    Args:
        retry: the policy.
        deadline: the time after which no attempt starts, on the monotonic clock.
    """

    def __init__(self, retry: Retry, *, deadline: float | None = None) -> None:
        self._retry, self._deadline = retry, deadline
        self._started = time.monotonic()
        self._count = self._silences = 0
        self.last: TransientStorageError | None = None

    def failed(self, error: TransientStorageError) -> None:
        """Pause before the next attempt.

        Raises:
            TransientStorageError: there is no next attempt; the message has the number of attempts.
        """
        self.last = error
        self._count += 1
        self._silences += error.silent
        left = self._retry.seconds - (time.monotonic() - self._started)
        pause = self._retry.pause(self._count - 1)
        if self._count >= self._retry.attempts:  # the last attempt starts when the seconds end
            pause = min(pause, left)
        pause = max(pause, error.asks_to_wait)
        message = f"{error} (tried {self._count} times)"
        if error.asks_to_wait > _MAX_WAIT_SECONDS:
            message = (
                f"{error} It asks to wait {error.asks_to_wait:.0f} s: run the same command again "
                "then."
            )
        elif (
            (self._count < self._retry.attempts or left > 0)
            and self._silences < self._retry.silences
            and (self._deadline is None or time.monotonic() + pause < self._deadline)
        ):
            time.sleep(pause)
            return
        last = TransientStorageError(message)
        last.silent, last.asks_to_wait = error.silent, error.asks_to_wait
        raise last from error


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that a server asks to wait; 0 if it names none, or a date."""
    headers = {name.lower(): value for name, value in headers.items()}
    text = headers.get("retry-after", "").strip()
    return float(text) if _SECONDS.fullmatch(text) else 0.0
