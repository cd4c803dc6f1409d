"""Buckets of object stores: requests with a time limit and retries, and errors of ours.

The clients' own retries are off, so that one policy decides how often and how long to retry.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

from streaming_ext.base.errors import StorageError, UsageError, reason_of
from streaming_ext.base.extras import extras_named
from streaming_ext.store.faults import ask, status_of, words_of
from streaming_ext.store.patience import Attempts, Retry, timeout_seconds
from streaming_ext.store.process_clients import client_of_process

Result = TypeVar("Result")

# scheme -> module and class
_STORES = {
    "s3": ("s3", "S3"),
    "s3a": ("s3", "S3"),
    "gs": ("google", "Google"),
    "gcs": ("google", "Google"),
    "az": ("azure", "Azure"),
    "abfs": ("azure", "Azure"),
}
OBJECT_STORES = tuple(_STORES)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_STREAMED_BYTES = 2**23  # files of at least this size are not held in memory


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it.

    Attributes:
        size: the size of the object in bytes.
        version: the text that identifies its content, `etag:...` or `generation:...`.
    """

    size: int
    version: str


class Store(Protocol):
    """The requests to a bucket of one kind of store; they raise the errors of the store's client.

    Attributes:
        OPTIONS: the names of the `storage_options` that the client takes.
    """

    OPTIONS: frozenset[str]

    def __init__(self, bucket: str, timeout: float, options: Mapping[str, Any]) -> None: ...

    def list(self, prefix: str) -> Iterable[tuple[str, ObjectInfo]]:
        """Yield the objects whose keys begin with `prefix`; request a page when it is needed."""
        ...

    def read(self, key: str, span: tuple[int, int] | None, version: str | None) -> bytes:
        """Return the bytes [start, end) of an object, or all; fewer if the object ends before.

        If the object has another version, the request fails with an unmet condition.
        """
        ...

    def headers(self, key: str) -> Mapping[str, str]:
        """Return the headers that hold hashes of the object, in lower case: `content-md5`, ..."""
        ...

    def put(self, key: str, data: bytes | Path, *, new: bool) -> None:
        """Put an object in one step; with `new`, only if there is none."""
        ...

    def copy(self, bucket: str, key: str, to: str) -> bool:
        """Copy an object of another bucket inside the store; return whether the store can do so."""
        return False

    def remove(self, key: str) -> None:
        """Remove an object."""
        ...


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One bucket or container; it holds no connection, so it may be copied by a fork.

    Attributes:
        scheme: the scheme of its URL.
        name: the name of the bucket.
        retry: the retry policy.
        timeout: seconds for which the server may stay silent.
        options: the user's `storage_options`, in addition to the environment; may hold secrets.
    """

    scheme: str
    name: str
    retry: Retry = field(default_factory=Retry.usual)
    timeout: float = field(default_factory=timeout_seconds)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def _store(self) -> Store:
        """The client of this process for all threads, made on first use."""
        return client_of_process((self.scheme, self.name, self.timeout), self._open, self.options)

    @extras_named()
    def _open(self) -> Store:
        store = store_type(self.scheme)
        try:
            return store(self.name, self.timeout, self.options)
        except ValueError as error:
            raise UsageError(
                f"{self.scheme}://{self.name}: {words_of(error)}. Check the settings in the "
                "environment (docs/reference/configuration.md)."
            ) from error

    def ask(
        self,
        verb: str,
        key: str,
        request: Callable[[Store], Result],
        attempts: Attempts | None = None,
    ) -> Result:
        """Make a request with `faults.ask`; messages say that it cannot `verb` the object."""
        what = f"{verb} {self.scheme}://{self.name}/{key}"
        return ask(what, lambda: request(self._store), attempts or Attempts(self.retry))

    def find(self, prefix: str) -> dict[str, ObjectInfo]:
        """Return every object whose key begins with `prefix`, by key, without folders."""
        found = self._of_bucket("list", prefix, lambda store: dict(store.list(prefix)))
        return {key: info for key, info in found.items() if not key.endswith("/")}

    def require_listable(self, prefix: str) -> None:
        """Make sure that the bucket exists and may be listed."""
        self._of_bucket("list", prefix, lambda store: next(iter(store.list(prefix)), None))

    def read(
        self, key: str, *, span: tuple[int, int] | None = None, version: str | None = None
    ) -> bytes:
        """Read an object, or its bytes [start, end), with one request.

        Args:
            key: the key of the object in the bucket.
            span: start and end of the bytes to read; the whole object by default.
            version: the expected version; `FileExistsError` if the object has another one.
        """

        def read(store: Store) -> bytes:
            data = store.read(key, span, version)
            # http.client reads an answer that is cut in its headers as an empty one.
            if span is not None and len(data) != span[1] - span[0]:
                raise ConnectionError(
                    f"the answer was cut: {len(data)} of {span[1] - span[0]} bytes"
                )
            return data

        return self.ask("read", key, read)

    def read_at_most(self, key: str, limit: int, attempts: Attempts) -> bytes:
        """Return the first `limit` bytes of an object, or all if it has fewer."""
        try:
            return self.ask("read", key, lambda store: store.read(key, (0, limit), None), attempts)
        except StorageError as error:
            if status_of(error) == 416:  # an empty object has no byte 0
                return b""
            raise

    def put(self, key: str, data: bytes | Path, *, new: bool = False) -> None:
        """Put an object; a large file is not held in memory.

        Raises:
            FileExistsError: `new` is true, and there is an object already.
            StorageError: the local file cannot be read.
        """
        if isinstance(data, Path):
            file = data
            try:
                data = file if file.stat().st_size >= _STREAMED_BYTES else file.read_bytes()
            except OSError as error:
                raise StorageError(f"Cannot read {file}: {reason_of(error)}.") from error
        self._of_bucket("write", key, lambda store: store.put(key, data, new=new))

    def _of_bucket(self, verb: str, key: str, request: Callable[[Store], Result]) -> Result:
        """Make a request that an existing bucket never answers with "not found"."""
        try:
            return self.ask(verb, key, request)
        except FileNotFoundError as error:
            raise StorageError(
                f"Cannot {verb} {self.scheme}://{self.name}/{key}: there is no such bucket, or "
                f"the endpoint is no object store: {words_of(error.__cause__ or error)}."
            ) from error


def store_type(scheme: str) -> type[Store]:
    """Return the class of the client for a scheme of `OBJECT_STORES`."""
    module, name = _STORES[scheme]
    store: type[Store] = getattr(import_module(f"streaming_ext.store.{module}"), name)
    return store


def require_span(came: str | None, span: tuple[int, int] | None) -> None:
    """Make sure that the `Content-Range` of an answer begins where the requested range begins.

    Raises:
        ConnectionError: the answer holds another range.
    """
    if span is not None and came and not came.startswith(f"bytes {span[0]}-"):
        raise ConnectionError(f"requested the bytes from {span[0]} on, the answer holds {came}")


@contextmanager
def complete_headers() -> Iterator[None]:
    """Refuse an answer that is cut in its headers, which http.client reads as a complete one.

    Raises:
        ConnectionError: the client does not find the headers that it needs.
    """
    try:
        yield
    except (KeyError, ValueError) as error:
        raise ConnectionError(f"the answer was cut in its headers ({error!r})") from error


def split_url(url: str) -> tuple[str, str, str]:
    """Split an object store's URL into scheme, bucket and key.

    Raises:
        UsageError: the URL names no bucket, or holds more than bucket and key.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if "@" in bucket or ":" in bucket:
        raise UsageError(
            f"A {scheme}:// URL must not hold credentials or a host. Set them in the environment: "
            "AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL, ..."
        )
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(f"{url}: expected {scheme}://BUCKET/PREFIX, got the bucket {bucket!r}.")
    if not key.isprintable() or "?" in key or "#" in key or ".." in key.split("/"):
        shown = re.split(r"[?#]", url)[0]  # a query may be a signature
        raise UsageError(f"{shown!r}: a prefix must not hold '..', '?', '#' or control characters.")
    return scheme, bucket, "/".join(part for part in key.split("/") if part)
