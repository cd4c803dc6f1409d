"""Servers that are no object store give a one-line error; those that ask to wait are heeded."""

import time
from collections.abc import Callable, Mapping

import pytest

from streaming_ext.base.errors import SourceError, StorageError, TransientStorageError, UsageError
from streaming_ext.store.buckets import Bucket
from streaming_ext.store.patience import Retry
from streaming_ext.store.remote import Remote
from streaming_ext.text.sources import SourceFile, hub
from streaming_ext.text.sources.web import WebReader, list_url
from tests.servers.scripted import PAGE, Answer, scripted

BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>busy</Message></Error>"
QUICK = Retry(attempts=3, first_pause=0.02)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)


def client(url: str | None = None, retry: Retry = QUICK) -> Bucket:
    options = {} if url is None else {"endpoint_url": url}
    return Bucket(scheme="s3", name="bucket", retry=retry, timeout=5.0, options=options)


@pytest.mark.parametrize("value", ["localhost:9000", "minio", "http://"])
def test_an_endpoint_without_a_scheme(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(UsageError, match=f"Invalid endpoint: {value}. Check the settings"):
                client().find("")


@pytest.mark.parametrize(
    "answer", [Answer(404, b"Not Found"), Answer(404, PAGE.body, PAGE.headers), PAGE]
)
def test_an_endpoint_of_a_web_server_or_a_captive_portal(answer: Answer) -> None:
    with scripted(lambda *_: answer) as server:
        store = client(server.url)
        for request in (store.require_listable, store.find):
            with pytest.raises(StorageError, match="no object store|invalid XML"):
                request("")


def test_what_a_store_never_does_is_not_tried_again() -> None:
    body = BUSY.replace(b"SlowDown", b"NotImplemented")
    with scripted(lambda *_: Answer(501, body, {"Content-Type": "text/xml"})) as server:
        with pytest.raises(StorageError, match="NotImplemented") as raised:
            client(server.url).read("x")
        assert not raised.value.transient
        assert len(server.asked) == 1


class TestRetryAfter:
    @pytest.mark.parametrize("status", [503, 429])
    def test_is_honoured(self, status: int) -> None:
        busy = Answer(status, BUSY, {"Retry-After": "1", "Content-Type": "application/xml"})
        answers = [busy]

        def answer(*_: object) -> Answer:
            return answers.pop() if answers else Answer(200, b"hello")

        with scripted(answer) as server:
            began = time.monotonic()
            assert client(server.url).read("x") == b"hello"
            assert 1 <= time.monotonic() - began < 20

    def test_of_an_hour_is_refused(self) -> None:
        headers = {"Retry-After": "3600", "Content-Type": "application/xml"}
        with (
            scripted(lambda *_: Answer(503, BUSY, headers)) as server,
            pytest.raises(TransientStorageError, match="asks to wait 3600 s"),
        ):
            client(server.url).read("x")


def read_url(url: str) -> bytes:
    return WebReader(SourceFile(url=f"{url}/x", size=99, version='etag:"e"')).read(0, 99)


def read_by_fsspec(url: str) -> bytes:
    return Remote(url=url, timeout=2, retries=1).read("x", limit=99)


def list_hub(url: str) -> list[SourceFile]:
    return hub.list_files("hf://datasets/org/name/*", lambda name: True)


@pytest.mark.parametrize("request_to", [read_url, list_url, list_hub, read_by_fsspec])
@pytest.mark.parametrize(
    ("status", "missing", "silent"),
    [
        (200, 90, False),
        (404, 90, False),
        (404, 90, True),
        (503, 0, False),
        (503, 90, False),
        (503, 90, True),
    ],
)
def test_answers_that_do_not_come_whole(
    monkeypatch: pytest.MonkeyPatch,
    request_to: Callable[[str], object],
    status: int,
    missing: int,
    silent: bool,
) -> None:
    """The error is one line with any library, and a request is repeated only if that may help."""
    monkeypatch.setattr(Retry, "usual", lambda: QUICK)
    monkeypatch.setenv("SHARDMILL_STORAGE_TIMEOUT", "0.5")
    broken = Answer(status, b"x" * 99, {"ETag": '"e"'}, missing, silent)
    with scripted(lambda *_: broken) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        if (request_to, status) == (list_url, 200):  # its HEAD request gives the size
            assert list_url(f"{server.url}/x")[0].size == 99
            return
        with pytest.raises((StorageError, SourceError)) as raised:
            request_to(f"{server.url}/x" if request_to is list_url else server.url)
        if raised.value.transient and not (request_to is read_by_fsspec and silent):
            assert len(server.asked) >= 2
        else:  # the status suffices without the text, or 2 s are too short for another attempt
            assert len(server.asked) == 1
            assert "there is no such file (404" in str(raised.value) or silent


class TestOtherRanges:
    """A proxy that answers with another range of the same length is not trusted."""

    DATA = bytes(range(256)) * 16

    def answer(self, _: str, path: str, headers: Mapping[str, str]) -> Answer:
        size = len(self.DATA)
        return Answer(
            206,
            self.DATA[512:768],
            {
                "Content-Range": f"bytes 512-767/{size}",
                "ETag": '"e"',
                "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT",
            },
        )

    def test_over_https(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Retry, "usual", lambda: QUICK)
        with scripted(self.answer) as server:
            url = f"{server.url}/x.parquet"
            reader = WebReader(SourceFile(url=url, size=len(self.DATA), version='etag:"e"'))
            assert reader.read(512, 768) == self.DATA[512:768]
            with pytest.raises(TransientStorageError, match="bytes from 0 on.* 512-767/4096"):
                reader.read(0, 256)

    def test_of_a_store(self) -> None:
        with scripted(self.answer) as server:
            store = client(server.url)
            assert store.read("x", span=(512, 768)) == self.DATA[512:768]
            with pytest.raises(TransientStorageError, match="requested the bytes from 0 on"):
                store.read("x", span=(0, 256))


class TestCaptivePortal:
    def test_instead_of_a_file(self) -> None:
        with scripted(lambda *_: PAGE) as server:
            url = f"{server.url}/x.parquet"
            with pytest.raises(StorageError, match="a web page came.*ask for a login"):
                list_url(url)
            with pytest.raises(StorageError, match="a web page came"):
                WebReader(SourceFile(url=url, size=9, version='etag:"e"')).read(0, 9)

    def test_instead_of_the_hub(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Retry, "usual", lambda: QUICK)
        with scripted(lambda *_: PAGE) as server:
            monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
            with pytest.raises(StorageError, match="look at the dataset org/name"):
                hub.list_files("hf://datasets/org/name/x.parquet", lambda name: True)
