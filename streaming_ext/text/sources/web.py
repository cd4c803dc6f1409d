"""HTTP requests, and source files at plain https:// URLs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TypeVar

import httpx

from streaming_ext.base.errors import SourceError, StorageError, UsageError, one_line
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.store.buckets import require_span
from streaming_ext.store.faults import ask, words_of
from streaming_ext.store.locations import require_no_secret
from streaming_ext.store.patience import connect_seconds, timeout_seconds
from streaming_ext.store.process_clients import client_of_process
from streaming_ext.store.redirects import RedirectGuard
from streaming_ext.text.sources.patterns import alternatives
from streaming_ext.text.sources.source_file import SourceFile

Result = TypeVar("Result")

_LISTED_AT_ONCE = 16
# Headers that ask for hashes; stores and other servers send these only on request.
_WANT_HASHES = {
    "Want-Repr-Digest": "sha-256=1, md5=1",
    "x-amz-checksum-mode": "ENABLED",
}


def client() -> httpx.Client:
    """Return this process's client; it keeps connections, and credentials reach their host alone.

    Raises:
        UsageError: the environment names a proxy of an unsupported kind.
    """
    return client_of_process(("http",), _make_client)


def _make_client() -> httpx.Client:
    timeout = timeout_seconds()
    try:
        return httpx.Client(
            follow_redirects=True,
            timeout=httpx.Timeout(timeout, connect=connect_seconds(timeout)),
            headers={"User-Agent": "shardmill", "Accept-Encoding": "identity"},
            event_hooks={"response": [RedirectGuard().seen]},
        )
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise UsageError(
            "A proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names cannot be used: "
            f"{one_line(error)}. Name one as http://HOST:PORT, or unset it."
        ) from error


def require_ok(response: httpx.Response) -> None:
    """Refuse a response that is no success, or that is a web page in place of a file.

    Raises:
        httpx.HTTPStatusError: the response is no success.
        StorageError: the response is a web page.
    """
    if not response.is_success:
        message = response.headers.get("X-Error-Message", "")  # the Hub sends this
        status = f"{response.status_code} {response.reason_phrase} {message}".strip()
        raise httpx.HTTPStatusError(status, request=response.request, response=response)
    if response.headers.get("Content-Type", "").lower().startswith("text/html"):
        raise StorageError(
            f"{response.url.copy_with(query=None)}: a web page came in place of the file. Does "
            "the network or the server ask for a login? Open it in a browser."
        )


class WebReader:
    """A reader of ranges of one file over HTTP, as long as the file is as listed.

    Args:
        source: the file.
        url: the address of the file, if that is not `source.url`.
        headers: the headers of each request, such as credentials.
    """

    def __init__(
        self, source: SourceFile, url: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self._source = source
        self._url = url or source.url
        self._headers = dict(headers or {})

    def read(self, start: int, end: int) -> bytes:
        """Read the bytes [start, end)."""
        return b"".join(self.stream(start, end))

    def stream(self, start: int, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes [start, end); if a connection fails, the next one continues.

        Args:
            start: the position of the first byte.
            end: the position after the last byte; by default the end of the file.
        """
        end = self._source.size if end is None else end
        while start < end:
            chunks = _ask(self._source.url, partial(self._begin, start, end))
            with suppress(httpx.HTTPError):
                for data in chunks:
                    start += len(data)
                    yield data

    def _begin(self, start: int, end: int) -> Iterator[bytes]:
        """Return the chunks of one connection, after the first of them has come."""
        chunks = self._stream_once(start, end)
        return chain([next(chunks)], chunks)

    def headers(self) -> Mapping[str, str]:
        """Return the headers that may hold hashes of the file; few servers send any."""

        def request() -> Mapping[str, str]:
            response = client().head(self._url, headers=self._headers | _WANT_HASHES)
            if not response.is_success or "Content-Encoding" in response.headers:
                return {}
            return {name.lower(): text for name, text in response.headers.items()}

        return _ask(self._source.url, request)

    def _stream_once(self, start: int, end: int) -> Iterator[bytes]:
        headers = self._headers | {"Range": f"bytes={start}-{end - 1}"}
        with client().stream("GET", self._url, headers=headers) as response:
            require_ok(response)
            self._require_same(response)
            require_span(response.headers.get("Content-Range"), (start, end))
            skip = start if response.status_code == httpx.codes.OK else 0  # the range was ignored
            left = end - start
            for data in response.iter_raw():
                if not left:  # more than requested comes; the rest is not waited for
                    return
                wanted = data[skip:][:left]
                skip -= min(skip, len(data))
                left -= len(wanted)
                if wanted:
                    yield wanted
            if left:
                raise httpx.ReadError(f"{left} of {end - start} bytes are missing")

    def _require_same(self, response: httpx.Response) -> None:
        found, expected = web_version(response.headers), self._source.version or ""
        if expected.startswith(("etag:", "last-modified:")) and found != expected:
            raise SourceError(
                f"{self._source.url}: changed since the run began ({expected}, now {found}). "
                "Run again."
            )


def _ask(url: str, request: Callable[[], Result]) -> Result:
    """Make a request for a source, and make it again after a fault that may pass.

    Raises:
        SourceError: there is no such file.
        StorageError: the server refuses, or keeps failing (`TransientStorageError`).
    """
    try:
        return ask(f"read {url}", request)
    except FileNotFoundError as error:
        fault = words_of(error.__cause__ or error)
        raise SourceError(f"{url}: there is no such file ({fault}).") from error


def web_version(headers: Mapping[str, str]) -> str | None:
    """Return a version that pins the content of a file behind a URL."""
    if etag := headers.get("ETag"):
        return f"etag:{etag}"
    if modified := headers.get("Last-Modified"):
        return f"last-modified:{modified}"
    return None


def list_url(pattern: str) -> list[SourceFile]:
    """List the file behind each URL that a brace pattern names.

    Raises:
        UsageError: the pattern holds wildcards, credentials or a query, or is not a URL.
        SourceError: there is no such file.
    """
    require_no_secret(pattern, "source")
    if any(character in pattern for character in "*?[#"):
        raise UsageError(
            f"{pattern}: files behind http:// and https:// cannot be listed. Give each URL, or "
            "braces."
        )
    try:
        first, *others = alternatives(pattern)
        _require_host(httpx.URL(first))
        found = [_list_one(first)]  # alone, so that a fault of all URLs is reported once
        return found + list(mapped_ahead(_list_one, others, threads=_LISTED_AT_ONCE))
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UsageError(f"{pattern[:200]!r} is no URL: {error}.") from error


def _require_host(url: httpx.URL) -> None:
    if not url.host or " " in url.host or "%" in url.host or not 0 < (url.port or 443) < 2**16:
        raise UsageError(f"{url.scheme}:// source: {url.netloc.decode()!r} is no host.")


def _list_one(url: str) -> SourceFile:
    def request(span: str = "bytes=0-0") -> SourceFile:
        with client().stream("GET", url, headers={"Range": span} if span else {}) as response:
            if span and response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                return request("")  # an empty file has no first byte
            require_ok(response)
            version = web_version(response.headers)
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
            if response.status_code == httpx.codes.PARTIAL_CONTENT:
                response.read()  # so that the connection is kept
            else:
                total = response.headers.get("Content-Length", "")
        if version is None or not total.isdigit():
            raise UsageError(
                f"{url}: the server sends no {'size' if version else 'ETag or Last-Modified'} of "
                "this file, so changes cannot be noticed. Download it."
            )
        return SourceFile(url=url, size=int(total), version=version)

    return _ask(url, request)
