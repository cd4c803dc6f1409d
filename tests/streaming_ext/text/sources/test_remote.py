"""Sources behind URLs: a wrong URL, server or proxy gives an error of one line."""

import threading
from collections.abc import Callable, Iterator, Mapping

import huggingface_hub
import pytest

from streaming_ext.base.errors import (
    StorageError,
    TokenizerError,
    TransientStorageError,
    UsageError,
)
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store.patience import Retry
from streaming_ext.text.listing import list_sources
from streaming_ext.text.look import look_into
from streaming_ext.text.sources.objects import bucket_of
from streaming_ext.text.tokenizer.load import load_tokenizer
from tests.servers.scripted import Answer, scripted
from tests.servers.storage.swift import SwiftServer, aws_environment, s3_client


def test_many_are_looked_at_at_once() -> None:
    """Except for the first file, the server answers only when four requests wait."""
    several = threading.Barrier(4)

    def answer(_: str, path: str, headers: Mapping[str, str]) -> Answer:
        assert headers["Range"] == "bytes=0-0"
        if path != "/0.jsonl":
            try:
                several.wait(30)
            except threading.BrokenBarrierError:
                return Answer(404)
        sent = {"ETag": f'"{path}"', "Content-Range": f"bytes 0-0/{10 + int(path[1])}"}
        return Answer(206, b"x", sent)

    with scripted(answer) as server:
        found = list_sources([server.url + "/{0..8}.jsonl"])
    assert [source.size for source in found] == list(range(10, 19))


def test_an_empty_file_has_no_range() -> None:
    def answer(_: str, path: str, headers: Mapping[str, str]) -> Answer:
        sent = {"ETag": '"empty"'}
        return (
            Answer(416, headers={"Content-Range": "bytes */0"})
            if "Range" in headers
            else (Answer(200, headers=sent))
        )

    with scripted(answer) as server:
        (source,) = list_sources([f"{server.url}/x.jsonl"])
        assert look_into([source], ReadOptions()) == ()
    assert (source.size, source.version) == (0, 'etag:"empty"')


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://host/x.parquet?token=planted-secret", "must not hold a query"),
        ("https://me:planted-secret@host/x.parquet", "must not hold credentials"),
        ("http://host/*.parquet", "cannot be listed"),
        ("ftp://host/x", "^ftp://host/x: ftp:// is not supported as source"),
        ("https://h:99999999/x.parquet", "'h:99999999' is no host"),
        ("https://[::1/x", "must not hold credentials"),  # perhaps; nothing of it is shown
        ("https://exa mple/x", "'exa%20mple' is no host"),
        ("https://a..b/x", "is no URL: .*label empty"),
        ("https:///x.parquet", "'' is no host"),
        ("https://\0/x", "is no URL: .*non-printable"),
        ("https://xn--a/x", "is no URL: .*not allowed"),
        ("https://127.0.0.1:9/\udc80", "is no URL: .*surrogates"),
        ("https://h:-1/x", "must not hold credentials"),
        ("s3://b/a/../c", r"must not hold '\.\.'"),
        ("s3://b/a\nb", "control characters"),
        ("s3://", "expected s3://BUCKET"),
        ("s3:///x", "expected s3://BUCKET"),
        ("s3://k:planted@b/x", "must not hold credentials"),
    ],
)
def test_what_names_no_source(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        list_sources([url])
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("key", ["my data/part-?.jsonl", "a b#c.jsonl", "a//b.jsonl", "/a", "a/"])
def test_keys_are_taken_to_the_letter(key: str) -> None:
    assert bucket_of(f"s3://bucket/{key}")[1] == key


@pytest.mark.parametrize("key", ["data/../../etc/x.parquet", "data/./x.parquet", "../x.parquet"])
def test_keys_that_lead_out_of_their_folder_are_refused(
    s3: SwiftServer, bucket: str, key: str
) -> None:
    client = s3_client(s3.url)
    client.put_object(Bucket=bucket, Key=key, Body=b"PAR1")
    client.close()
    with pytest.raises(UsageError, match="leads out of its folder"):
        list_sources([f"s3://{bucket}/**/*.parquet"])


@pytest.mark.usefixtures("s3")
def test_a_missing_bucket_and_a_missing_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match="nonesuch.*NoSuchBucket"):
        list_sources(["s3://nonesuch/a"])
    monkeypatch.setattr(Retry, "usual", lambda: Retry(attempts=2, first_pause=0.05))
    with pytest.raises(TransientStorageError, match="127.0.0.1:9"):
        list_sources(["http://127.0.0.1:9/x.parquet"])


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment without proxies, with the Hub at another host."""
    # Since 1.0 the library keeps a client, which knows the proxies of its first request.
    close: Callable[[], None] = getattr(huggingface_hub, "close_session", lambda: None)
    close()
    for name in ("ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.example")
    yield monkeypatch
    close()


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "http://[::1"])
def test_a_proxy_that_cannot_be_used(proxies: pytest.MonkeyPatch, proxy: str) -> None:
    proxies.setenv("ALL_PROXY", proxy)
    proxies.setenv("all_proxy", proxy)
    with pytest.raises(UsageError, match=r"^[^\n]*ALL_PROXY .* cannot be used[^\n]*$"):
        list_sources(["https://data.corp.example/a.jsonl"])
    with pytest.raises(TokenizerError, match=r"^[^\n]*https://hub.example does not answer[^\n]*$"):
        load_tokenizer("org/name")


@pytest.mark.parametrize(
    "url", ["http://store.example/x", "https://store.example/x", "hf://datasets/a/b/x", "s3://b/x"]
)
def test_a_proxy_that_does_not_answer(proxies: pytest.MonkeyPatch, url: str) -> None:
    """The error is one line, without the password."""
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        proxies.setenv(name, "http://user:planted@127.0.0.1:9")
    proxies.setenv("SHARDMILL_STORAGE_TIMEOUT", "0.5")  # shortens the pauses too
    for name, value in aws_environment("http://store.example").items():
        proxies.setenv(name, value)
    with pytest.raises(TransientStorageError, match=r"^[^\n]*(?i:proxy|connect)[^\n]*$") as raised:
        list_sources([url])
    assert "planted" not in str(raised.value)
