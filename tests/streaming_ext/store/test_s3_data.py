"""What a further client of S3 need not read again."""

from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from streaming_ext.store.client import ObjectClient
from tests.servers.scripted import Answer, scripted

DATA = bytes(2**21)  # read by botocore's client in a thread; a few bytes by the event loop's


def test_what_botocore_knows_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    load = JSONFileLoader.load_file

    def noted(self: JSONFileLoader, path: str) -> Any:
        read.append(path)
        return load(self, path)

    monkeypatch.setattr(JSONFileLoader, "load_file", noted)
    with scripted(lambda *_: Answer(200, DATA)) as server:
        options = {"endpoint_url": server.url, "key": "k", "secret": "s"}
        for bucket in ("one", "other"):
            read.clear()
            client = ObjectClient(scheme="s3", bucket=bucket, options=options)
            assert client.read("x", what="read x") == DATA
            assert client.read("x", what="read x", span=(0, len(DATA))) == DATA
    assert read == []
