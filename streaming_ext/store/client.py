"""Asking an object store through fsspec: bounded in time, retried where that helps, told plainly.

The clients' own retries are off, so that one place decides how often and how long is tried.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from streaming_ext.base.errors import StorageError, TransientStorageError, UsageError
from streaming_ext.store.azure import Azure
from streaming_ext.store.dialect import Dialect, ObjectInfo
from streaming_ext.store.digests import Digest
from streaming_ext.store.faults import client_errors, explained, is_beyond_end, is_missing
from streaming_ext.store.google import Google
from streaming_ext.store.patience import Retry, insist, timeout_seconds
from streaming_ext.store.process_clients import client_of_process
from streaming_ext.store.s3 import S3

_DIALECTS: dict[str, Dialect] = {
    "s3": S3(),
    "s3a": S3(),
    "gs": Google(),
    "gcs": Google(),
    "az": Azure(),
    "abfs": Azure(),
}
OBJECT_STORES = tuple(_DIALECTS)


def dialect_of(scheme: str) -> Dialect:
    """How the store behind a scheme of `OBJECT_STORES` is spoken to."""
    return _DIALECTS[scheme]


Result = TypeVar("Result")

# The clients' own time-outs end the silence of a server; aiohttp has none while it sends.
_SLOWEST_BYTES_PER_SECOND = 2**14
_GRACE_SECONDS = 5.0  # beyond a deadline, which who set it tells of
_HEADS_AT_ONCE = 16
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class ObjectClient:
    """One bucket or container; a value that holds no connection, so that a fork may copy it.

    Attributes:
        scheme: of its URL.
        bucket: its name.
        retry: how often a request is made.
        timeout: seconds that the server may say nothing.
        options: for fsspec, beside what the environment says; they may hold secrets.
    """

    scheme: str
    bucket: str
    retry: Retry = field(default_factory=Retry.usual)
    timeout: float = field(default_factory=timeout_seconds)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def dialect(self) -> Dialect:
        """How this store is spoken to."""
        return dialect_of(self.scheme)

    @property
    def filesystem(self) -> Any:
        """This process's fsspec file system, made on first use; one for all threads."""
        place = (self.scheme, self.bucket, self.timeout)
        return client_of_process(place, self._open, self.options)

    def _open(self) -> Any:
        dialect = self.dialect
        try:
            return dialect.open(self.scheme, self.timeout, self.options)
        except ImportError as error:
            raise UsageError(
                f"{self.scheme}:// needs {dialect.package}: "
                f"pip install 'shardmill[{dialect.extra}]'."
            ) from error
        except ValueError as error:  # adlfs where no account is named
            raise UsageError(
                f"{self.scheme}://{self.bucket}: {str(error).rstrip('!')}. Credentials come from "
                "the environment: docs/operate/storage.md names the variables."
            ) from error

    def ask(
        self,
        what: str,
        request: Callable[[Any], Awaitable[Result]],
        *,
        sends: int = 0,
        deadline: float | None = None,
        failures: list[TransientStorageError] | None = None,
    ) -> Result:
        """Make a request, again where the fault may pass; `what` names it in messages.

        Args:
            what: "write s3://bucket/x".
            request: gets the file system.
            sends: bytes; more take more time.
            deadline: on the monotonic clock, for all attempts together.
            failures: gets what went wrong, attempt by attempt.

        Raises:
            FileNotFoundError: there is no such object.
            FileExistsError: a conditional request found one.
            StorageError: the store refuses, or goes on failing (`TransientStorageError`).
        """

        def once() -> Result:
            began = time.monotonic()
            limit = None
            if deadline is not None:
                limit = max(deadline - began, 0) + _GRACE_SECONDS
            elif sends:
                limit = self.timeout + sends / _SLOWEST_BYTES_PER_SECOND
            try:
                return self._once(request, limit)
            except client_errors() as error:
                if is_missing(error):
                    raise FileNotFoundError(what) from error
                waited = min(time.monotonic() - began, self.timeout)
                raise explained(error, what=what, bucket=self.bucket, seconds=waited) from error

        return insist(once, self.retry, deadline=deadline, failures=failures)

    def look_at(self, prefix: str, *, what: str) -> None:
        """Make sure that the bucket is there and may be listed."""
        self._listed(what, lambda fs: self.dialect.look_at(fs, self.bucket, prefix))

    def find(self, prefix: str, *, what: str) -> dict[str, ObjectInfo]:
        """Every object whose key begins with `prefix`, by key; no folders."""
        found = self._listed(what, lambda fs: self.dialect.find(fs, self.bucket, prefix))
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

        async def read(fs: Any) -> bytes:
            data = await self.dialect.read(fs, self.bucket, key, span, version)
            # http.client takes an answer that is cut in its head for a whole one without content.
            if span is not None and len(data) != span[1] - span[0]:
                raise ConnectionError(
                    f"the answer was cut: {len(data)} bytes came of {span[1] - span[0]}"
                )
            return data

        return self.ask(what, read)

    def read_at_most(
        self,
        key: str,
        limit: int,
        *,
        what: str,
        deadline: float | None = None,
        failures: list[TransientStorageError] | None = None,
    ) -> bytes:
        """The first `limit` bytes of an object, or all where it has fewer; see `ask`."""

        async def read(fs: Any) -> bytes:
            try:
                return await self.dialect.read(fs, self.bucket, key, (0, limit), None)
            except client_errors() as error:
                if is_beyond_end(error):  # an empty object
                    return b""
                raise

        return self.ask(what, read, deadline=deadline, failures=failures)

    def digest(self, key: str, size: int, *, what: str) -> Digest | None:
        """What a whole object of `size` bytes can be checked by; None where nothing can."""
        found = self.ask(what, lambda fs: self.dialect.digest(fs, self.bucket, key))
        if found is None or not found.count:
            return found
        sizes: list[int] = []
        for first in range(1, found.count + 1, _HEADS_AT_ONCE):
            numbers = range(first, min(first + _HEADS_AT_ONCE, found.count + 1))
            sizes += self._piece_sizes(key, numbers, what=what)
            if sum(sizes) > size:  # it tells of the whole, whatever piece is asked for
                break
        return replace(found, sizes=tuple(sizes)) if sum(sizes) == size else None

    def _piece_sizes(self, key: str, numbers: range, *, what: str) -> list[int]:
        return self.ask(what, lambda fs: self.dialect.piece_sizes(fs, self.bucket, key, numbers))

    def put(self, key: str, data: bytes, *, what: str, new: bool = False) -> None:
        """Put an object; where `new`, `FileExistsError` where there is one."""
        self.ask(
            what,
            lambda fs: self.dialect.put(fs, self.bucket, key, data, new=new),
            sends=len(data),
        )

    def copy(self, place: str, key: str, *, size: int, what: str) -> bool:
        """Have the store copy an object by itself; returns whether it can.

        Args:
            place: bucket and key of the object.
            key: of the copy, in this bucket.
            size: of the object, in bytes.
            what: names the request in messages.

        Raises:
            FileNotFoundError: there is no such object.
        """
        return self.ask(what, lambda fs: self.dialect.copy(fs, place, self.bucket, key, size))

    def remove(self, key: str, *, what: str) -> None:
        """Remove an object; `FileNotFoundError` where the store tells that there is none."""
        self.ask(what, lambda fs: self.dialect.remove(fs, self.bucket, key))

    def _listed(self, what: str, request: Callable[[Any], Awaitable[Result]]) -> Result:
        """Ask for a listing, of which every store knows at least that there is no bucket."""
        try:
            return self.ask(what, request)
        except FileNotFoundError as error:
            raise StorageError(
                f"Cannot {what}: what answers knows no such request, so it is no object store. "
                f"Check {self.dialect.endpoint}."
            ) from error

    def _once(self, request: Callable[[Any], Awaitable[Result]], seconds: float | None) -> Result:
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
        shown = re.split(r"[?#]", url)[0]  # a query may be a signature
        raise UsageError(f"{shown!r}: a prefix must not hold '..', '?', '#' or control characters.")
    return scheme, bucket, "/".join(part for part in key.split("/") if part)
