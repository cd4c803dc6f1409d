"""Proxies that no HTTP client can use, where sources lie behind URLs."""

import pytest

from streaming_ext.errors import UsageError
from streaming_ext.text.sources.listing import list_sources
from streaming_ext.text.tokenizer.hub_files import _why_unreachable as why_unreachable


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "ftp://127.0.0.1:9", "http://[::1"])
def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setenv("all_proxy", proxy)
    with pytest.raises(UsageError, match=r"ALL_PROXY .* cannot be used") as raised:
        list_sources(["https://data.corp.example/a.jsonl"])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "ftp://127.0.0.1:9", "http://[::1"])
def test_a_tokenizer_of_the_hub(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setenv("all_proxy", proxy)
    assert "proxy for https://hub.example cannot be used" in str(
        why_unreachable("https://hub.example")
    )
