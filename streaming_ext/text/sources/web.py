"""HTTP: requests with bounded patience, and source files behind plain https:// URLs."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import httpx

from streaming_ext.base.errors import (
    SourceError,
    StorageError,
    TransientStorageError,
    UsageError,
    one_line,
)
from streaming_ext.store.digests import Digest, digest_in
from streaming_ext.store.faults import proxy_advice
from streaming_ext.store.patience import (
    MAX_WAIT_SECONDS,
    Retry,
    retry_after,
    timeout_seconds,
)
from streaming_ext.store.process_clients import client_of_process
from streaming_ext.text.sources.addresses import RedirectGuard
from streaming_ext.text.sources.patterns import alternatives
from streaming_ext.text.sources.source_file import SourceFile

Result = TypeVar("Result")
Explain = Callable[[httpx.Response], Exception]

_LOOKING: Final = 16  # files that are asked for at once, each of which is waited for


def retry() -> Retry:
    """How often a request is made."""
    return Retry.usual()


def client() -> httpx.Client:
    """This process's client: connections are kept; credentials stay with their host.

    Raises:
        UsageError: a proxy that the environment names is of no kind that can be used.
    """
    return client_of_process(("http",), _make_client)


def _make_client() -> httpx.Client:
    """Make it.

    Raises:
        UsageError: a proxy that the environment names is of no kind that can be used.
    """
    timeout = timeout_seconds()
    try:
        return httpx.Client(
            follow_redirects=True,
            timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            headers={"User-Agent": "shardmill", "Accept-Encoding": "identity"},
            event_hooks={"response": [RedirectGuard().seen]},
        )
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # it looks at all of them
        raise UsageError(
            "A proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names cannot be used: "
            f"{one_line(error)}. Name one as http://HOST:PORT, or unset it."
        ) from error


class _LaterError(Exception):
    """The server asks to come again later."""

    def __init__(self, message: str, seconds: float | None) -> None:
        super().__init__(message)
        self.seconds = seconds


def patiently(what: str, request: Callable[[], Result]) -> Result:
    """Make a request, again where the fault may pass.

    Raises:
        TransientStorageError: it fails again and again, or asks for too long a pause.
    """
    attempt = 0
    while True:
        try:
            return request()
        except (httpx.HTTPError, _LaterError) as error:
            attempt = _pause_or_raise(what, error, attempt)


# Asks for what stores and other servers tell of a file where they are asked.
_WANTED = {
    "Accept-Encoding": "identity",
    "Want-Repr-Digest": "sha-256=1, md5=1",
    "x-amz-checksum-mode": "ENABLED",
}


def require_ok(response: httpx.Response, explain: Explain) -> None:
    """Raise what an answer that is no success means."""
    if response.is_success:
        return
    if response.status_code == 429 or response.status_code >= 500:
        raise _LaterError(
            f"the server answers {response.status_code} {response.reason_phrase}",
            retry_after(response.headers),
        )
    raise explain(response)


class WebReader:
    """Reads one file over HTTP, in ranges, as long as it is the one that was listed."""

    def __init__(
        self, source: SourceFile, url: str, *, headers: Mapping[str, str], explain: Explain
    ) -> None:
        self._source = source
        self._url = url
        self._headers = dict(headers)
        self._explain = explain

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end)."""

        def request() -> bytes:
            return b"".join(self._stream_once(start, end))

        data = patiently(f"read {self._source.url}", request)
        if len(data) != end - start:
            raise TransientStorageError(
                f"{self._source.url}: {len(data)} bytes came of {end - start}."
            )
        return data

    def stream(self, start: int) -> Iterator[bytes]:
        """All bytes from `start` on, over any number of connections as long as each brings some."""
        position, attempt = start, 0
        while position < self._source.size:
            before = position
            try:
                for data in self._stream_once(position, self._source.size):
                    position += len(data)
                    yield data
                error: Exception = _LaterError("the connection was closed early", None)
            except (httpx.HTTPError, _LaterError) as failed:
                error = failed
            if position < self._source.size:
                attempt = 0 if position > before else attempt
                attempt = _pause_or_raise(f"read {self._source.url}", error, attempt)

    def _stream_once(self, start: int, end: int) -> Iterator[bytes]:
        headers = self._headers | {"Range": f"bytes={start}-{end - 1}"}
        with client().stream("GET", self._url, headers=headers) as response:
            require_ok(response, self._explain)
            require_no_page(response, self._source.url)
            self._require_same(response)
            self._require_range(response, start, end)
            skip = start if response.status_code == httpx.codes.OK else 0  # it ignores ranges
            left = end - start
            for data in response.iter_raw():
                if not left:  # more than was asked for: the rest is not waited for
                    return
                piece = data[skip:][:left]
                skip -= min(skip, len(data))
                left -= len(piece)
                if piece:
                    yield piece

    def _require_range(self, response: httpx.Response, start: int, end: int) -> None:
        """Make sure that the part that came is the one that was asked for."""
        if response.status_code != httpx.codes.PARTIAL_CONTENT:
            return
        came = response.headers.get("Content-Range", "")
        if came.replace(" ", "") not in {
            f"bytes{start}-{end - 1}/{total}" for total in (self._source.size, "*")
        }:
            raise _LaterError(
                f"asked for the bytes {start}-{end - 1} of {self._source.size}, the answer holds "
                f"{came or 'a part that it does not name'}",
                None,
            )

    def _require_same(self, response: httpx.Response) -> None:
        found = web_version(response.headers)
        expected = self._source.version or ""
        if expected.startswith(("etag:", "last-modified:")) and found != expected:
            raise SourceError(
                f"{self._source.url}: changed since the run began ({expected}, now {found}). "
                "Run again."
            )

    def digest(self) -> Digest | None:
        """What a web server tells of the whole file; most tell nothing."""

        def request() -> Digest | None:
            headers = self._headers | _WANTED
            response = client().head(self._url, headers=headers)
            if not response.is_success or "Content-Encoding" in response.headers:
                return None
            return digest_in({name.lower(): text for name, text in response.headers.items()})

        return patiently(f"look at {self._source.url}", request)

    def check(self) -> None:
        """Every answer was compared."""


def _pause_or_raise(what: str, error: Exception, attempt: int) -> int:
    """Wait behind a failed attempt; returns how many there were."""
    attempt += 1
    pause = retry().pause(attempt - 1)
    reason = one_line(error) or type(error).__name__
    if isinstance(error, httpx.TransportError) and (advice := proxy_advice(str(error.request.url))):
        reason = f"{reason}.{advice}"
    if isinstance(error, _LaterError) and error.seconds is not None:
        pause = error.seconds
        if pause > MAX_WAIT_SECONDS:
            raise TransientStorageError(
                f"Cannot {what}: {reason}, and asks to wait {pause:.0f} s. Run the same command "
                "again then."
            ) from error
    limit = retry().silences if isinstance(error, httpx.TimeoutException) else retry().attempts
    if attempt >= limit:
        raise TransientStorageError(f"Cannot {what}: {reason} (tried {attempt} times).") from error
    time.sleep(pause)
    return attempt


def web_version(headers: Mapping[str, str]) -> str | None:
    """What pins the content of a file behind a URL."""
    if etag := headers.get("ETag"):
        return f"etag:{etag}"
    if modified := headers.get("Last-Modified"):
        return f"last-modified:{modified}"
    return None


def list_url(pattern: str) -> list[SourceFile]:
    """The file behind each URL that a brace pattern means.

    Raises:
        UsageError: it holds wildcards, credentials or a query; or there is no such file.
    """
    try:
        return _list_url(pattern)
    except (httpx.InvalidURL, UnicodeError) as error:
        secret = "@" in pattern or "?" in pattern
        shown = f"A {pattern.partition(':')[0]}:// source" if secret else f"{pattern[:200]!r}"
        raise UsageError(f"{shown} is no URL: {error}.") from error


def _list_url(pattern: str) -> list[SourceFile]:
    url = httpx.URL(pattern.partition("{")[0])
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
    first, *others = alternatives(pattern)
    found = [_look_at(first)]  # alone: what is wrong with all of them is told once
    with ThreadPoolExecutor(_LOOKING) as threads:
        return found + list(threads.map(_look_at, others))


def _look_at(url: str) -> SourceFile:
    def explain(response: httpx.Response) -> Exception:
        return explain_web(url, response)

    def request() -> SourceFile:
        with client().stream("GET", url, headers={"Range": "bytes=0-0"}) as response:
            require_ok(response, explain)
            require_no_page(response, url)
            headers = response.headers
            version = web_version(headers)
            total = headers.get("Content-Range", "").rpartition("/")[2]
            if response.status_code == httpx.codes.PARTIAL_CONTENT:
                response.read()  # so that the connection is kept
            else:
                total = headers.get("Content-Length", "")
            if version is None or not total.isdigit():
                raise UsageError(
                    f"{url}: the server tells no {'size' if version else 'ETag or Last-Modified'} "
                    "of this file, so it cannot be known whether it stays the same. Download it."
                )
            return SourceFile(url=url, size=int(total), version=version)

    return patiently(f"look at {url}", request)


def explain_web(url: str, response: httpx.Response) -> Exception:
    """What a refused request for a plain URL means."""
    status = response.status_code
    if status in {401, 403}:
        return StorageError(f"{url}: access is refused ({status}).")
    if status in {404, 410}:
        return SourceError(f"{url}: there is no such file ({status}).")
    return StorageError(f"{url}: the server answers {status} {response.reason_phrase}.")


def require_no_page(response: httpx.Response, what: str) -> None:
    """Refuse a web page in place of a file or of an answer to a program.

    Raises:
        StorageError: it is one.
    """
    if response.headers.get("Content-Type", "").lower().startswith("text/html"):
        raise StorageError(
            f"{what}: a web page came in its place. Does the network ask for a login (captive "
            f"portal), or {response.url.host} for one? Open it in a browser."
        )


def json_of(response: httpx.Response, what: str) -> Any:
    """The JSON of an answer."""
    require_no_page(response, f"Cannot {what}")
    try:
        return response.json()
    except ValueError as error:
        raise TransientStorageError(f"Cannot {what}: the answer is no JSON.") from error
