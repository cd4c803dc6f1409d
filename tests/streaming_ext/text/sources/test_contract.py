"""What every kind of source does: lists what pins files, and reads what was listed or nothing."""

import functools
import http.server
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.fetch import fetch
from streaming_ext.text.formats import format_of
from streaming_ext.text.listing import list_sources
from streaming_ext.text.sources import SourceFile, objects
from streaming_ext.text.sources.source_bytes import SourceFileBytes, open_reader
from tests.servers.hub import Dataset, hub_server
from tests.servers.storage.azurite import container_client, make_container
from tests.servers.storage.swift import s3_client
from tests.streaming_ext.text.readers.test_contract import DOCUMENTS, KINDS

FILES = {"a/x.parquet": b"x" * 100, "a/y.parquet": bytes(range(256)) * 4, "b/x.parquet": b"b"}


@dataclass(frozen=True)
class Location:
    """Where files lie, filled with `FILES`.

    Attributes:
        url: of the folder; a file's path follows it.
        put: another content under a name.
        pinned: whether what was listed stays to be read after that.
    """

    url: str
    put: Callable[[str, bytes], object]
    pinned: bool = False

    def named(self, *paths: str) -> list[str]:
        """URLs."""
        return [f"{self.url}/{path}" for path in paths]


@pytest.fixture(params=["s3", "gs", "az", "https", "hub"])
def location(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Location]:
    made = _LOCATIONS[request.param](request, tmp_path, monkeypatch)
    with made as found:
        for path, data in FILES.items():
            found.put(path, data)
        yield found


def _s3(request: pytest.FixtureRequest, *_: object) -> Iterator[Location]:
    bucket, server = request.getfixturevalue("bucket"), request.getfixturevalue("s3")
    client = s3_client(server.url)
    yield Location(
        f"s3://{bucket}", lambda path, data: client.put_object(Bucket=bucket, Key=path, Body=data)
    )
    client.close()


def _gs(request: pytest.FixtureRequest, *_: object) -> Iterator[Location]:
    server = request.getfixturevalue("gcs")
    bucket = server.make_bucket()
    yield Location(f"gs://{bucket}", lambda path, data: server.put(bucket, path, data))


def _az(request: pytest.FixtureRequest, *_: object) -> Iterator[Location]:
    server = request.getfixturevalue("azurite")
    name = make_container(server)
    with container_client(server, name) as client:
        yield Location(
            f"az://{name}", lambda path, data: client.upload_blob(path, data, overwrite=True)
        )


class _Files(http.server.SimpleHTTPRequestHandler):
    """A plain web server, which knows no ranges."""

    def log_message(self, *_: object) -> None:
        """Quiet."""


def _https(_: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    root = tmp_path / "site"

    def put(path: str, data: bytes) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        if data not in FILES.values():  # it tells times in seconds
            os.utime(root / path, (1, 1))

    handler = functools.partial(_Files, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield Location(f"http://127.0.0.1:{server.server_address[1]}", put)
        server.shutdown()
        thread.join()


def _hub(_: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    with hub_server() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        dataset = server.datasets["org/text"] = Dataset()
        files: dict[str, bytes] = {}

        def put(path: str, data: bytes) -> None:
            files[path] = data
            dataset.commit(files)

        yield Location("hf://datasets/org/text", put, pinned=True)


_LOCATIONS = {
    "s3": contextmanager(_s3), "gs": contextmanager(_gs), "az": contextmanager(_az),
    "https": contextmanager(_https), "hub": contextmanager(_hub),
}  # fmt: skip


def test_listed_in_order_with_size_and_version(location: Location) -> None:
    found = list_sources(location.named("{b,a}/x.parquet"))
    assert [source.name for source in found] == ["x.parquet", "x.parquet"]
    assert [source.size for source in found] == [100, 1]
    assert found == sorted(found)
    assert all(source.version for source in found)
    assert len({source.version for source in found}) == 2 or "http" in location.url
    assert list_sources(location.named("{b,a}/x.parquet")) == found


def test_complete_reads_ranges_and_resumed_reads(
    location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_CHUNK_BYTES", 100)
    (source,) = list_sources(location.named("a/y.parquet"))
    data = FILES["a/y.parquet"]
    path, fetched = fetch(source, tmp_path / "one")
    assert path.read_bytes() == data
    assert fetched == len(data)
    assert fetch(source, tmp_path / "one") == (path, 0)
    assert open_reader(source).read(250, 700) == data[250:700]
    assert b"".join(open_reader(source).stream(333)) == data[333:]


@pytest.mark.parametrize("location", ["s3", "gs", "az"], indirect=True)
@pytest.mark.parametrize(
    "key", ["my data/x.parquet", "odd/a#1.parquet", "odd/b?.parquet", "c//d.parquet"]
)
def test_keys_are_taken_to_the_letter(location: Location, tmp_path: Path, key: str) -> None:
    location.put("my-data/x.parquet", b"another")
    location.put("odd/bb.parquet", b"another")
    location.put("c/d.parquet", b"another")
    location.put(key, b"this one")
    (source,) = list_sources(location.named(key))
    assert (source.url, source.size) == (f"{location.url}/{key}", 8)
    path, _ = fetch(source, tmp_path)
    assert path.read_bytes() == b"this one"


def test_missing(location: Location) -> None:
    with pytest.raises((UsageError, SourceError), match=r"none\.parquet|no such file|matches"):
        list_sources(location.named("a/none.parquet"))


@pytest.mark.parametrize("same_size", [True, False])
def test_changed_since_it_was_listed(location: Location, tmp_path: Path, same_size: bool) -> None:
    (source,) = list_sources(location.named("a/x.parquet"))
    location.put("a/x.parquet", b"X" * (100 if same_size else 50))
    if location.pinned:
        path, _ = fetch(source, tmp_path / "one")
        assert path.read_bytes() == FILES["a/x.parquet"]
        return
    for read in (
        lambda: fetch(source, tmp_path / "one"),
        lambda: open_reader(source).read(10, 20),
    ):
        with pytest.raises(SourceError, match="changed since the run began") as caught:
            read()
        assert source.url in str(caught.value)
    assert not list((tmp_path / "one").glob("*.source"))
    (again,) = list_sources(location.named("a/x.parquet"))
    assert again.version != source.version


def test_changed_between_two_reads(
    location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is half old and half new."""
    monkeypatch.setattr(objects, "_CHUNK_BYTES", 100)
    (source,) = list_sources(location.named("a/y.parquet"))
    reader = open_reader(source)
    assert reader.read(0, 100) == FILES["a/y.parquet"][:100]
    location.put("a/y.parquet", b"Y" * 1024)
    rest: Callable[[], object] = lambda: reader.read(100, 200)  # noqa: E731
    if location.pinned:
        assert rest() == FILES["a/y.parquet"][100:200]
    else:
        with pytest.raises(SourceError, match="changed since the run began"):
            rest()


def test_removed_since_it_was_listed(location: Location, tmp_path: Path) -> None:
    (source,) = list_sources(location.named("a/x.parquet"))
    gone = SourceFile(
        url=source.url.replace("x.parquet", "z.parquet"), size=source.size, version=source.version
    )
    with pytest.raises(SourceError, match=r"z\.parquet") as caught:
        fetch(gone, tmp_path / "one")
    assert not caught.value.fatal  # the other files are not


def test_every_format(location: Location, tmp_path: Path) -> None:
    """Listed, looked into, sampled in location, fetched, and read alike."""
    files, options = {}, ReadOptions()
    for kind in KINDS:
        kind.write(tmp_path / "x", DOCUMENTS)
        files[f"x{kind.suffix}"] = (tmp_path / "x").read_bytes()
    files["x.txt"] = (DOCUMENTS[-1] or "").encode()
    for name, data in files.items():
        location.put(f"in/{name}", data)
    is_web = location.url.startswith("http:")
    found = list_sources(location.named(f"in/{{{','.join(files)}}}" if is_web else "in/*"))
    assert sorted(source.name for source in found) == sorted(files)
    if not is_web:
        of_folder = {source.name for source in list_sources(location.named("in"))}
        assert of_folder == {name for name in files if not re.search(r"\.(json|txt)\b", name)}
    for source in found:
        expected = [text for text in DOCUMENTS if text is not None]
        expected = expected[-1:] if source.name == "x.txt" else expected
        reads, file = format_of(source.url), SourceFileBytes(source)
        sampled = [
            text
            for block in reads.blocks(file, options)
            for batch in reads.read(file, options, span=block.span, batch_bytes=1000)
            for text in batch.texts.to_pylist()
        ]
        assert sampled == expected, source.name
        path, fetched = fetch(source, tmp_path / "scratch", options=options)
        assert fetched == source.size
        read = reads.read(path, options, name=source.url)
        assert [text for batch in read for text in batch.texts.to_pylist()] == expected
