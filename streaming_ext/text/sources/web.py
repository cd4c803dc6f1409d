"""HTTP requests, and source files at plain https:// URLs."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import httpx

from streaming_ext.base.errors import (
    SourceError,
    StorageError,
    TransientStorageError,
    UsageError,
    one_line,
)
from streaming_ext.store.faults import translated, words_of
from streaming_ext.store.patience import Attempts, Retry, connect_seconds, insist, timeout_seconds
from streaming_ext.store.process_clients import client_of_process
from streaming_ext.text.sources.addresses import RedirectGuard
from streaming_ext.text.sources.patterns import alternatives
from streaming_ext.text.sources.source_file import SourceFile

Result = TypeVar("Result")

_LISTED_AT_ONCE = 16
# Requests the hashes that stores and other servers send only on request.
_WANT_HASHES = {
    "Want-Repr-Digest": "sha-256=1, md5=1",
    "x-amz-checksum-mode": "ENABLED",
}


def client() -> httpx.Client:
    """This process's client; it keeps connections, and sends credentials to their host alone.

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
    """Refuse an answer that is no success, or a web page in place of a file.

    Raises:
        httpx.HTTPStatusError: it is no success.
        StorageError: it is a web page.
    """
    if not response.is_success:
        message = response.headers.get("X-Error-Message", "")  # of the Hub
        status = f"{response.status_code} {response.reason_phrase} {message}".strip()
        raise httpx.HTTPStatusError(status, request=response.request, response=response)
    if response.headers.get("Content-Type", "").lower().startswith("text/html"):
        raise StorageError(
            f"{response.url.copy_with(query=None)}: a web page came in place of the file. Does "
            "the network or the server ask for a login? Open it in a browser."
        )


def _fault(error: httpx.HTTPError, url: str) -> Exception:
    """The error to raise in place of httpx's."""
    fault = translated(error, f"read {url}")
    if isinstance(fault, StorageError):
        return fault
    return SourceError(f"{url}: there is no such file ({words_of(error)}).")


class WebReader:
    """Reads one file over HTTP, in ranges, as long as it is the one that was listed.

    Args:
        source: the file.
        url: its address, if that is not `source.url`.
        headers: of each request, such as credentials.
    """

    def __init__(
        self, source: SourceFile, url: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self._source = source
        self._url = url or source.url
        self._headers = dict(headers or {})

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end)."""

        def request() -> bytes:
            data = b"".join(self._stream_once(start, end))
            if len(data) != end - start:
                raise httpx.ReadError(f"{len(data)} of {end - start} bytes came")
            return data

        return _ask(self._source.url, request)

    def stream(self, start: int) -> Iterator[bytes]:
        """All bytes from `start` on, over any number of connections that each bring some."""
        position, attempts = start, Attempts(Retry.usual())
        while position < self._source.size:
            before = position
            error: httpx.HTTPError = httpx.ReadError("the connection was closed early")
            try:
                for data in self._stream_once(position, self._source.size):
                    position += len(data)
                    yield data
            except httpx.HTTPError as failed:
                error = failed
            if position > before:
                attempts = Attempts(Retry.usual())
            if position < self._source.size:
                fault = _fault(error, self._source.url)
                if not isinstance(fault, TransientStorageError):
                    raise fault from error
                attempts.failed(fault)

    def headers(self) -> Mapping[str, str]:
        """The headers that may hold hashes of the file; few servers send any."""

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
            self._require_range(response, start, end)
            skip = start if response.status_code == httpx.codes.OK else 0  # it ignores ranges
            left = end - start
            for data in response.iter_raw():
                if not left:  # more than requested: the rest is not waited for
                    return
                wanted = data[skip:][:left]
                skip -= min(skip, len(data))
                left -= len(wanted)
                if wanted:
                    yield wanted

    def _require_range(self, response: httpx.Response, start: int, end: int) -> None:
        """Make sure that the range that came is the one that was requested."""
        came = response.headers.get("Content-Range", "")
        if response.status_code == httpx.codes.PARTIAL_CONTENT and came.replace(" ", "") not in {
            f"bytes{start}-{end - 1}/{total}" for total in (self._source.size, "*")
        }:
            raise httpx.RemoteProtocolError(
                f"requested the bytes {start}-{end - 1} of {self._source.size}, the answer holds "
                f"{came or 'an unnamed range'}"
            )

    def _require_same(self, response: httpx.Response) -> None:
        found, expected = web_version(response.headers), self._source.version or ""
        if expected.startswith(("etag:", "last-modified:")) and found != expected:
            raise SourceError(
                f"{self._source.url}: changed since the run began ({expected}, now {found}). "
                "Run again."
            )


def _ask(url: str, request: Callable[[], Result]) -> Result:
    """Make a request for a source, and again after a fault that may pass.

    Raises:
        SourceError: there is no such file.
        StorageError: the server refuses, or keeps failing (`TransientStorageError`).
    """

    def once() -> Result:
        try:
            return request()
        except httpx.HTTPError as error:
            raise _fault(error, url) from error

    return insist(once)


def web_version(headers: Mapping[str, str]) -> str | None:
    """What pins the content of a file behind a URL."""
    if etag := headers.get("ETag"):
        return f"etag:{etag}"
    if modified := headers.get("Last-Modified"):
        return f"last-modified:{modified}"
    return None


def list_url(pattern: str) -> list[SourceFile]:
    """The file behind each URL that a brace pattern names.

    Raises:
        UsageError: it holds wildcards, credentials or a query, or is no URL.
        SourceError: there is no such file.
    """
    try:
        url = httpx.URL(pattern.partition("{")[0])
        _require_plain(pattern, url)
        first, *others = alternatives(pattern)
        found = [_list_one(first)]  # alone: what is wrong with all of them is reported once
        with ThreadPoolExecutor(_LISTED_AT_ONCE) as threads:
            return found + list(threads.map(_list_one, others))
    except (httpx.InvalidURL, UnicodeError) as error:
        secret = "@" in pattern or "?" in pattern
        shown = f"A {pattern.partition(':')[0]}:// source" if secret else f"{pattern[:200]!r}"
        raise UsageError(f"{shown} is no URL: {error}.") from error


def _require_plain(pattern: str, url: httpx.URL) -> None:
    if not url.host and "{" not in pattern.split("/")[2]:
        raise UsageError(f"{pattern}: expected {url.scheme}://HOST/PATH, got no host.")
    if " " in url.host or "%" in url.host or not 0 < (url.port or 443) < 2**16:
        raise UsageError(f"{url.scheme}:// source: {url.netloc.decode()!r} is no host.")
    if url.userinfo or "?" in pattern or "#" in pattern:
        raise UsageError(
            f"{url.scheme}://{url.host}{url.path}: a source's URL stands in the dataset's records, "
            "so it must hold no credentials and no query."
        )
    if "*" in pattern or "[" in pattern:
        raise UsageError(
            f"{pattern}: files behind {url.scheme}:// cannot be listed. Give each URL, or braces."
        )


def _list_one(url: str) -> SourceFile:
    def request() -> SourceFile:
        with client().stream("GET", url, headers={"Range": "bytes=0-0"}) as response:
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
