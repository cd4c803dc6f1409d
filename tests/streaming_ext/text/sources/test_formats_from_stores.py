"""Every format from every store: listed, looked into, sampled in place, fetched, and read alike."""

import functools
import http.server
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.fetch import fetch
from streaming_ext.text.formats import format_of
from streaming_ext.text.listing import list_sources
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from tests.servers.hub import Dataset, hub_server
from tests.servers.storage.azurite import container_client, make_container
from tests.servers.storage.swift import make_bucket, s3_client
from tests.streaming_ext.text.readers.test_contract import DOCUMENTS, KINDS

Put = Callable[[pytest.FixtureRequest, pytest.MonkeyPatch, Mapping[str, bytes]], Iterator[str]]
OPTIONS = ReadOptions()


def in_s3(
    request: pytest.FixtureRequest, _: pytest.MonkeyPatch, files: Mapping[str, bytes]
) -> Iterator[str]:
    server = request.getfixturevalue("s3")
    bucket = make_bucket(server.url)
    client = s3_client(server.url)
    for name, data in files.items():
        client.put_object(Bucket=bucket, Key=f"in/{name}", Body=data)
    client.close()
    yield f"s3://{bucket}/in"


def in_gs(
    request: pytest.FixtureRequest, patch: pytest.MonkeyPatch, files: Mapping[str, bytes]
) -> Iterator[str]:
    server = request.getfixturevalue("gcs_session")
    for name, value in server.environment().items():
        patch.setenv(name, value)
    bucket = server.make_bucket()
    for name, data in files.items():
        server.put(bucket, f"in/{name}", data)
    yield f"gs://{bucket}/in"


def in_az(
    request: pytest.FixtureRequest, patch: pytest.MonkeyPatch, files: Mapping[str, bytes]
) -> Iterator[str]:
    server = request.getfixturevalue("azurite_session")
    for name, value in server.environment().items():
        patch.setenv(name, value)
    container = make_container(server)
    with container_client(server, container) as client:
        for name, data in files.items():
            client.upload_blob(f"in/{name}", data)
    yield f"az://{container}/in"


def on_the_hub(
    _: pytest.FixtureRequest, patch: pytest.MonkeyPatch, files: Mapping[str, bytes]
) -> Iterator[str]:
    with hub_server() as running:
        patch.setattr(constants, "ENDPOINT", running.url)
        dataset = running.datasets["org/text"] = Dataset()
        dataset.commit({f"in/{name}": data for name, data in files.items()})
        yield "hf://datasets/org/text/in"


def behind_urls(
    request: pytest.FixtureRequest, _: pytest.MonkeyPatch, files: Mapping[str, bytes]
) -> Iterator[str]:
    root = request.getfixturevalue("tmp_path") / "site"
    root.mkdir()
    for name, data in files.items():
        (root / name).write_bytes(data)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        names = ",".join(files)
        yield f"http://127.0.0.1:{server.server_address[1]}/{{{names}}}"
        server.shutdown()
        thread.join()


STORES: dict[str, Put] = {
    "s3": in_s3, "gs": in_gs, "az": in_az, "hf": on_the_hub, "http": behind_urls
}  # fmt: skip


@pytest.mark.parametrize("store", STORES)
def test_every_format(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str
) -> None:
    files = {}
    for kind in KINDS:
        kind.write(tmp_path / "x", DOCUMENTS)
        files[f"x{kind.suffix}"] = (tmp_path / "x").read_bytes()
    files["x.txt"] = (DOCUMENTS[-1] or "").encode()
    with contextmanager(STORES[store])(request, monkeypatch, files) as url:
        found = list_sources([url if store == "http" else f"{url}/*"])
        assert sorted(source.name for source in found) == sorted(files)
        if store != "http":
            kept = {source.name for source in list_sources([url])}
            assert kept == {
                name for name in files if not name.endswith((".json", ".json.gz", ".txt"))
            }
        for source in found:
            expected = [text for text in DOCUMENTS if text is not None]
            expected = expected[-1:] if source.name == "x.txt" else expected
            reads = format_of(source.url)
            look = reads.look(SourceFileBytes(source), OPTIONS)
            assert look is not None
            file = SourceFileBytes(source)
            sampled = [
                text
                for block in look.blocks
                for batch in reads.read(file, OPTIONS, span=block.span, batch_bytes=1000)
                for text in batch.texts.to_pylist()
            ]
            assert sampled == expected, source.name
            path, fetched = fetch(source, tmp_path / "scratch", options=OPTIONS)
            assert fetched == source.size
            read = reads.read(path, OPTIONS, name=source.url)
            assert [text for batch in read for text in batch.texts.to_pylist()] == expected
