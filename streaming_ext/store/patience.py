"""How long a storage request is waited for, and how often it is made again."""

import email.utils
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import TypeVar

from streaming_ext.base.errors import TransientStorageError, UsageError

Result = TypeVar("Result")

TIMEOUT_VARIABLE = "SHARDMILL_STORAGE_TIMEOUT"
_TIMEOUT_SECONDS = 30.0
_PATIENCE_SECONDS = 30.0  # that a fault which may pass is waited out, at the usual time-out
MAX_WAIT_SECONDS = 300.0  # that a server may ask for with Retry-After
_SECONDS = re.compile(r"[0-9]{1,9}")  # thirty years are enough
# Not the module's own generator: its state belongs to the training script, and forks share one.
_JITTER = random.SystemRandom()


def timeout_seconds() -> float:
    """How long a server may say nothing, in seconds.

    Raises:
        UsageError: the environment holds no number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text or _TIMEOUT_SECONDS)
    except ValueError:
        seconds = -1
    if not 0 < seconds < 3600:
        raise UsageError(f"{TIMEOUT_VARIABLE} is {text!r}, expected seconds between 0 and 3600.")
    return seconds


def patience() -> float:
    """By what all pauses are multiplied: 1 at the usual time-out, never more."""
    return min(1.0, timeout_seconds() / _TIMEOUT_SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """How often a request is made before the fault is told.

    Attributes:
        attempts: so many; more only while `seconds` are not over.
        silences: at most so many of them without any answer.
        first_pause: seconds before the second; doubles up to `longest_pause`, with jitter.
        seconds: a fault that is answered is waited out for so long at least.
    """

    attempts: int = 7
    silences: int = 3
    first_pause: float = 0.5
    longest_pause: float = 10.0
    seconds: float = 0.0

    @classmethod
    def usual(cls) -> "Retry":
        """As patient as the environment asks for: the pauses go with the time-out."""
        return cls(first_pause=0.5 * patience(), longest_pause=10.0 * patience())

    @classmethod
    def training(cls, further: int) -> "Retry":
        """Of one file that training waits for: `further` attempts, and half a minute at least."""
        usual = cls.usual()
        return cls(
            attempts=1 + further,
            silences=1 + further,
            first_pause=usual.first_pause,
            longest_pause=usual.longest_pause,
            seconds=_PATIENCE_SECONDS * patience() if further else 0.0,
        )

    def pause(self, attempt: int) -> float:
        """Seconds to wait behind attempt 0, 1, ..."""
        pause: float = min(self.first_pause * 2 ** min(attempt, 30), self.longest_pause)
        return pause * _JITTER.uniform(0.5, 1.0)


def insist(
    once: Callable[[], Result],
    retry: Retry,
    *,
    deadline: float | None = None,
    failures: list[TransientStorageError] | None = None,
) -> Result:
    """Do something, again where it fails in a way that may pass.

    Args:
        once: one attempt.
        retry: how often.
        deadline: on the monotonic clock; no attempt begins behind it.
        failures: gets what went wrong, attempt by attempt.

    Raises:
        TransientStorageError: the last attempt's, with their number.
    """
    began = time.monotonic()
    attempt = silences = 0
    while True:
        try:
            return once()
        except TransientStorageError as error:
            attempt += 1
            silences += error.silent
            if failures is not None:
                failures.append(error)
            pause = retry.pause(attempt - 1)
            left = retry.seconds - (time.monotonic() - began)
            if attempt >= retry.attempts:  # the last one at the end of the seconds
                pause = min(pause, left)
            pause = max(pause, error.asks_to_wait)
            told = f"{error} (tried {attempt} times)"
            if error.asks_to_wait > MAX_WAIT_SECONDS:
                told = (
                    f"{error} It asks to wait {error.asks_to_wait:.0f} s: run the same command "
                    "again then."
                )
            elif (
                (attempt < retry.attempts or left > 0)
                and silences < retry.silences
                and (deadline is None or time.monotonic() + pause < deadline)
            ):
                time.sleep(pause)
                continue
            last = TransientStorageError(told)
            last.silent, last.asks_to_wait = error.silent, error.asks_to_wait
            raise last from error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, as a server asks; by its own clock where it names a time.

    None where it asks for nothing that can be understood, which is then left out of account.
    """
    headers = {name.lower(): value for name, value in headers.items()}
    text = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        until = _seconds_of(text)
        now = _seconds_of(headers["date"]) if "date" in headers else time.time()
    except (ValueError, OverflowError):
        return None
    return max(0.0, until - now)


def _seconds_of(date: str) -> float:
    """A date of HTTP as seconds since 1970; one without a zone is of Greenwich, as all should be.

    Raises:
        ValueError: it is none.
    """
    moment = email.utils.parsedate_to_datetime(date)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
