"""A byte that changed on the way is noticed wherever a store offers something to compare with."""

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from streaming_ext.dataset.record import NOT_CHECKED, SourceIdentity
from streaming_ext.errors import SourceError
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.sources.fetch import came_unchecked, fetch, identity_of, remove_fetched
from tests.servers.scripted import Answer, scripted

DATA = bytes(range(256)) * 64
MD5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
SHA256 = base64.b64encode(hashlib.sha256(DATA).digest()).decode()
CRC32 = base64.b64encode(zlib.crc32(DATA).to_bytes(4, "big")).decode()


@dataclass
class Store:
    """An S3 server with one object, whose first answers have a bit flipped."""

    etag: str = MD5
    offers: Mapping[str, str] = field(default_factory=dict)
    flips: int = 0
    gets: int = 0

    def answer(self, method: str, _: str, headers: Mapping[str, str]) -> Answer:
        told = {"ETag": f'"{self.etag}"', "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
        if method == "HEAD":
            offered = self.offers if headers.get("x-amz-checksum-mode") == "ENABLED" else {}
            return Answer(200, DATA, told | dict(offered))
        self.gets += 1
        body = DATA if self.gets > self.flips else DATA[:500] + bytes([DATA[500] ^ 1]) + DATA[501:]
        told["Content-Range"] = f"bytes 0-{len(DATA) - 1}/{len(DATA)}"
        return Answer(206, body, told)

    def fetched(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, SourceFile]:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        source = SourceFile(
            url="s3://bucket/x.parquet", size=len(DATA), version=f"etag:{self.etag}"
        )
        with scripted(self.answer) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
            return fetch(source, folder)[0], source


PIECES = "9b2cf535f27731c974343645a3985328-3"
OFFERED = [
    (MD5, {}),
    (PIECES, {"x-amz-checksum-sha256": SHA256, "x-amz-checksum-type": "FULL_OBJECT"}),
    (PIECES, {"x-amz-checksum-crc32": CRC32, "x-amz-checksum-type": "FULL_OBJECT"}),
    ("0" * 32, {"x-amz-server-side-encryption": "aws:kms", "x-amz-checksum-sha256": SHA256}),
]
NOT_OFFERED = [
    (PIECES, {}),
    (PIECES, {"x-amz-checksum-sha256": f"{SHA256}-3"}),
    ("0" * 32, {"x-amz-server-side-encryption": "aws:kms"}),
]


@pytest.mark.parametrize(("etag", "offers"), OFFERED)
def test_is_fetched_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, etag: str, offers: dict[str, str]
) -> None:
    store = Store(etag, offers, flips=1)
    path, source = store.fetched(tmp_path / "one", monkeypatch)
    assert path.read_bytes() == DATA
    assert store.gets == 2
    assert not came_unchecked(path)
    assert "content" not in identity_of(source, path).model_dump()
    with pytest.raises(SourceError, match="s3://bucket/x.parquet: the content that came has"):
        Store(etag, offers, flips=9).fetched(tmp_path / "two", monkeypatch)
    assert list((tmp_path / "two").iterdir()) == []


@pytest.mark.parametrize(("etag", "offers"), NOT_OFFERED)
def test_is_said_where_nothing_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, etag: str, offers: dict[str, str]
) -> None:
    store = Store(etag, offers, flips=1)
    path, source = store.fetched(tmp_path, monkeypatch)
    assert store.gets == 1
    identity = identity_of(source, path)
    assert identity.content == NOT_CHECKED
    assert SourceIdentity.model_validate_json(identity.model_dump_json()) == identity
    remove_fetched(path)
    assert list(tmp_path.iterdir()) == []


def test_records_of_local_files_stay_as_they_are() -> None:
    identity = SourceIdentity(url="/x", size=1, version="xxh128:0")
    assert identity.model_dump_json() == '{"url":"/x","size":1,"version":"xxh128:0"}'
    assert identity.model_dump_json(exclude_none=True) == identity.model_dump_json()
