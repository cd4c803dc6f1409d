"""Proxies that no HTTP client can use, where sources lie behind URLs."""

import pytest

from streaming_ext.base.errors import TokenizerError, TransientStorageError, UsageError
from streaming_ext.text.listing import list_sources
from streaming_ext.text.tokenizer.load import load_tokenizer
from tests.servers.storage.swift import aws_environment


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "http://[::1"])
def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setenv("all_proxy", proxy)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.example")
    with pytest.raises(UsageError, match=r"ALL_PROXY .* cannot be used") as raised:
        list_sources(["https://data.corp.example/a.jsonl"])
    assert "\n" not in str(raised.value)
    with pytest.raises(TokenizerError, match="https://hub.example does not answer") as raised:
        load_tokenizer("org/name")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["http://store.example/x", "https://store.example/x", "hf://datasets/a/b/x", "s3://b/x"]
)
def test_a_proxy_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """One line, without a password."""
    for name in ("ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://user:planted@127.0.0.1:9")
    monkeypatch.setenv("SHARDMILL_STORAGE_TIMEOUT", "0.5")  # pauses go with it
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.example")
    for name, value in aws_environment("http://store.example").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TransientStorageError, match="(?i)proxy|connect") as raised:
        list_sources([url])
    assert "planted" not in str(raised.value)
    assert "\n" not in str(raised.value)
