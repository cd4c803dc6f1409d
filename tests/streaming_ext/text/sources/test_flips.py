"""A byte that changed on the way is noticed if the store offers a hash to compare with."""

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from streaming_ext.base.errors import SourceError
from streaming_ext.format.record import NOT_CHECKED, SourceIdentity
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.fetch import came_unchecked, fetch, identify, remove_fetched
from streaming_ext.text.parts import Part, SourceSpan
from streaming_ext.text.sources import SourceFile
from streaming_ext.writing.part_documents import fetch_part
from tests.servers.scripted import Answer, scripted

DATA = bytes(range(256)) * 64
MD5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
MD5_BASE64 = base64.b64encode(bytes.fromhex(MD5)).decode()
SHA256 = base64.b64encode(hashlib.sha256(DATA).digest()).decode()
CRC32 = base64.b64encode(zlib.crc32(DATA).to_bytes(4, "big")).decode()


@dataclass
class Store:
    """An S3 or web server with one object, whose first answers have a bit flipped."""

    etag: str = MD5
    offers: Mapping[str, str] = field(default_factory=dict)
    flips: int = 0
    is_web: bool = False
    gets: int = 0

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        sent = {"ETag": f'"{self.etag}"', "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
        if method == "HEAD":
            offers = self.is_web or headers.get("x-amz-checksum-mode") == "ENABLED"
            return Answer(200, DATA, sent | (dict(self.offers) if offers else {}))
        self.gets += 1
        body = DATA if self.gets > self.flips else DATA[:500] + bytes([DATA[500] ^ 1]) + DATA[501:]
        sent["Content-Range"] = f"bytes 0-{len(DATA) - 1}/{len(DATA)}"
        return Answer(206, body, sent)

    def fetched(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, SourceFile]:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        with scripted(self.answer) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
            bucket, etag = (server.url, f'"{self.etag}"') if self.is_web else ("s3://b", self.etag)
            url, version = f"{bucket}/x.parquet", f"etag:{etag}"
            source = SourceFile(url=url, size=len(DATA), version=version)
            return fetch(source, folder)[0], source


CHUNKS = "9b2cf535f27731c974343645a3985328-3"
WHOLE = {"x-amz-checksum-type": "FULL_OBJECT"}
BY_KEY = {"x-amz-server-side-encryption": "aws:kms"}
COMPOSED = {"x-amz-checksum-sha256": f"{SHA256}-3", "x-amz-checksum-type": "COMPOSITE"}
OFFERED = [
    (MD5, {}),
    (CHUNKS, {"x-amz-checksum-sha256": SHA256} | WHOLE),
    (CHUNKS, {"x-amz-checksum-crc32": CRC32} | WHOLE),
    ("0" * 32, {"x-amz-checksum-sha256": SHA256} | BY_KEY),
]
NOT_OFFERED = [
    ("0" * 32, BY_KEY),
    (CHUNKS, {}),
    (CHUNKS, COMPOSED),
    ("0x8DCBE", {}),
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
    assert identify(source, path).content is None
    with pytest.raises(SourceError, match="s3://b/x.parquet: the content that came has"):
        Store(etag, offers, flips=9).fetched(tmp_path / "two", monkeypatch)
    assert list((tmp_path / "two").iterdir()) == []


@pytest.mark.parametrize(("etag", "offers"), NOT_OFFERED)
def test_is_said_where_nothing_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, etag: str, offers: dict[str, str]
) -> None:
    store = Store(etag, offers, flips=1)
    path, source = store.fetched(tmp_path, monkeypatch)
    assert store.gets == 1
    identity = identify(source, path)
    assert identity.content == NOT_CHECKED
    assert SourceIdentity.model_validate_json(identity.model_dump_json()) == identity
    remove_fetched(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("span", "way_out"), [(None, "no hash"), ((0, 500), "Pass --part-size 16384")]
)
def test_a_required_check_that_is_impossible_is_refused(
    tmp_path: Path, span: tuple[int, int] | None, way_out: str
) -> None:
    data = b'{"text": "words"}\n'.ljust(16384)

    def answer(_: str, __: str, headers: Mapping[str, str]) -> Answer:
        first, last = map(int, headers.get("Range", "bytes=0-16383")[6:].split("-"))
        sent = {"ETag": '"e"', "Content-Range": f"bytes {first}-{last}/{len(data)}"}
        return Answer(206, data[first : last + 1], sent)

    with scripted(answer) as server:
        source = SourceFile(url=f"{server.url}/x.jsonl", size=len(data), version='etag:"e"')
        part = Part(0, (SourceSpan(source, span),))
        fetch_part(part, tmp_path, options=ReadOptions())
        with pytest.raises(SourceError, match=f"x.jsonl cannot be checked: .*{way_out}"):
            fetch_part(part, tmp_path, options=ReadOptions(), check=True)
    assert list(tmp_path.iterdir()) == []


SAID = {
    "Repr-Digest": f"unixsum=:AAAA:, sha-256=:{SHA256}:",
    "x-goog-hash": f"crc32c=AAAA,md5={MD5_BASE64}",
    "x-amz-checksum-crc32": CRC32,
    "Content-MD5": MD5_BASE64,
}


@pytest.mark.parametrize(
    ("name", "text"), [*SAID.items(), ("x-amz-checksum-sha256", f"{SHA256}-3")]
)
def test_over_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """Most servers send no hash; stores and some others do."""
    store = Store("e", {name: text}, flips=1, is_web=True)
    path, _ = store.fetched(tmp_path, monkeypatch)
    assert came_unchecked(path) == (name not in SAID)
    assert (path.read_bytes() == DATA) == (name in SAID)
    assert store.gets == (2 if name in SAID else 1)
