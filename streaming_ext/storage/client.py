"""Asking an object store through fsspec: bounded in time, retried where that helps, told plainly.

The clients' own retries are off, so that one place decides how often and how long is tried.
"""

import asyncio
import os
import random
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from streaming_ext.errors import TransientStorageError, UsageError
from streaming_ext.storage.dialects import Dialect, ObjectInfo, OpenUpload, dialect_of
from streaming_ext.storage.faults import client_errors, explained, is_missing, is_timeout

Result = TypeVar("Result")

TIMEOUT_VARIABLE = "SHARDMILL_STORAGE_TIMEOUT"
_TIMEOUT_SECONDS = 30.0
_SLOWEST_BYTES_PER_SECOND = 2**18  # a transfer that is slower than this is given up
_UNKNOWN_BYTES = 64 * 2**20  # to expect of an object that is read whole, such as a shard
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """How often a request is made before the fault is told.

    Attributes:
        attempts: at most so many.
        silences: at most so many of them without any answer.
        first_pause: seconds before the second; doubles up to `longest_pause`, with jitter.
    """

    attempts: int = 7
    silences: int = 3
    first_pause: float = 0.5
    longest_pause: float = 10.0

    @classmethod
    def usual(cls) -> "Retry":
        """As patient as the environment asks for: the pauses go with the time-out."""
        return cls(first_pause=0.5 * patience(), longest_pause=10.0 * patience())

    def pause(self, attempt: int) -> float:
        """Seconds to wait behind attempt 0, 1, ..."""
        pause: float = min(self.first_pause * 2**attempt, self.longest_pause)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311


def patience() -> float:
    """By what all pauses are multiplied: 1 at the usual time-out, never more."""
    return min(1.0, timeout_seconds() / _TIMEOUT_SECONDS)


@dataclass(frozen=True, kw_only=True)
class ObjectClient:
    """One bucket or container, and the fsspec file system that asks it.

    Attributes:
        scheme: of its URL.
        bucket: its name.
    """

    scheme: str
    bucket: str
    retry: Retry = field(default_factory=Retry.usual)
    timeout: float = field(default_factory=timeout_seconds)

    @property
    def dialect(self) -> Dialect:
        """How this store is spoken to."""
        return dialect_of(self.scheme)

    @cached_property
    def filesystem(self) -> Any:
        """The fsspec file system, made on first use."""
        dialect = self.dialect
        try:
            return dialect.open(self.scheme, self.timeout)
        except ImportError as error:
            raise UsageError(
                f"{self.scheme}:// needs {dialect.package}: "
                f"pip install 'shardmill[{dialect.extra}]'."
            ) from error
        except ValueError as error:  # adlfs where no account is named
            raise UsageError(
                f"{self.scheme}://{self.bucket}: {str(error).rstrip('!')}. Credentials come from "
                "the environment: docs/storage.md names the variables."
            ) from error

    def ask(
        self,
        what: str,
        request: Callable[[Any], Awaitable[Result]],
        *,
        size: int = 0,
    ) -> Result:
        """Make a request, again where the fault may pass; `what` names it in messages.

        Args:
            what: "write s3://bucket/x".
            request: gets the file system.
            size: bytes that it moves; more take more time.

        Raises:
            FileNotFoundError: there is no such object.
            FileExistsError: a conditional request found one.
            StorageError: the store refuses, or goes on failing (`TransientStorageError`).
        """
        limit = self.timeout + 1 + size / _SLOWEST_BYTES_PER_SECOND
        attempt = silences = 0
        while True:
            began = time.monotonic()
            try:
                return self._once(request, limit)
            except client_errors() as error:
                if is_missing(error):
                    raise FileNotFoundError(what) from error
                waited = time.monotonic() - began
                told = explained(error, what=what, bucket=self.bucket, seconds=waited)
                if isinstance(told, FileExistsError):
                    raise told from error
                attempt += 1
                silences += is_timeout(error)
                last = attempt >= self.retry.attempts or silences >= self.retry.silences
                if not told.transient or last:
                    if isinstance(told, TransientStorageError):
                        told = TransientStorageError(f"{told} (tried {attempt} times)")
                    raise told from error
            time.sleep(self.retry.pause(attempt - 1))

    def look_at(self, prefix: str, *, what: str) -> None:
        """Make sure that the bucket is there and may be listed."""
        self.ask(what, lambda fs: self.dialect.look_at(fs, self.bucket, prefix))

    def find(self, prefix: str, *, what: str) -> dict[str, ObjectInfo]:
        """Every object whose key begins with `prefix`, by key; no folders."""
        found = self.ask(what, lambda fs: self.dialect.find(fs, self.bucket, prefix))
        return {key: info for key, info in found.items() if not key.endswith("/")}

    def read(
        self,
        key: str,
        *,
        what: str,
        span: tuple[int, int] | None = None,
        version: str | None = None,
    ) -> bytes:
        """An object, or its bytes [start, end), in one request.

        Args:
            key: within the bucket.
            what: names the request in messages.
            span: start and end within the object; all of it by default.
            version: `FileExistsError` where the object is another one.
        """
        size = _UNKNOWN_BYTES if span is None else span[1] - span[0]

        async def read(fs: Any) -> bytes:
            data = await self.dialect.read(fs, self.bucket, key, span, version)
            # http.client takes an answer that is cut in its head for a whole one without content.
            if span is not None and len(data) != size:
                raise ConnectionError(f"the answer was cut: {len(data)} bytes came of {size}")
            return data

        return self.ask(what, read, size=size)

    def put(self, key: str, data: bytes, *, what: str, new: bool = False) -> None:
        """Put an object; where `new`, `FileExistsError` where there is one."""
        self.ask(
            what,
            lambda fs: self.dialect.put(fs, self.bucket, key, data, new=new),
            size=len(data),
        )

    def remove(self, key: str, *, what: str) -> None:
        """Remove an object; `FileNotFoundError` where the store tells that there is none."""
        self.ask(what, lambda fs: self.dialect.remove(fs, self.bucket, key))

    def open_uploads(self, prefix: str, *, what: str) -> list[OpenUpload]:
        """Uploads below a prefix that killed processes left open."""
        return self.ask(what, lambda fs: self.dialect.open_uploads(fs, self.bucket, prefix))

    def give_up(self, upload: OpenUpload) -> None:
        """Give one up; gone already is no error."""
        with suppress(FileNotFoundError):
            self.ask(
                f"give up an upload of {self.scheme}://{self.bucket}/{upload.key}",
                lambda fs: self.dialect.give_up(fs, self.bucket, upload),
            )

    def _once(self, request: Callable[[Any], Awaitable[Result]], seconds: float) -> Result:
        filesystem = self.filesystem

        async def bounded() -> Result:
            return await asyncio.wait_for(request(filesystem), seconds)

        return asyncio.run_coroutine_threadsafe(bounded(), filesystem.loop).result()


def split_url(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and key of an object store's URL.

    Raises:
        UsageError: it names no bucket, or says more than a place.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if "@" in bucket or ":" in bucket:
        raise UsageError(
            f"A {scheme}:// URL must not hold credentials or a host. Give them through the "
            "environment: AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL, ..."
        )
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(f"{url}: expected {scheme}://BUCKET/PREFIX, got the bucket {bucket!r}.")
    if not key.isprintable() or "?" in key or "#" in key or ".." in key.split("/"):
        raise UsageError(f"{url!r}: a prefix must not hold '..', '?', '#' or control characters.")
    return scheme, bucket, "/".join(part for part in key.split("/") if part)
