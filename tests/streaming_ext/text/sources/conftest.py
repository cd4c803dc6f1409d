"""Locations of sources: a store of each kind, a web server and the Hub, with the same files."""

import functools
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers.hub import Dataset, hub_server
from tests.servers.storage.azurite import container_client, make_container
from tests.servers.storage.swift import s3_client

FILES = {"a/x.parquet": b"x" * 100, "a/y.parquet": bytes(range(256)) * 4, "b/x.parquet": b"b"}


@dataclass(frozen=True)
class Location:
    """A location of files, filled with `FILES`.

    Attributes:
        url: the URL of the folder; a file's path follows it.
        put: the function that stores content under a path.
        pinned: True if what was listed can still be read after another `put`.
    """

    url: str
    put: Callable[[str, bytes], object]
    pinned: bool = False

    def named(self, *paths: str) -> list[str]:
        """Return the URLs of paths."""
        return [f"{self.url}/{path}" for path in paths]


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
    """A plain web server, without ranges."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _https(_: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    root = tmp_path / "site"

    def put(path: str, data: bytes) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        if data not in FILES.values():  # the server reports times in seconds
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
    "s3": contextmanager(_s3),
    "gs": contextmanager(_gs),
    "az": contextmanager(_az),
    "https": contextmanager(_https),
    "hub": contextmanager(_hub),
}


@contextmanager
def locate(kind: str, request: pytest.FixtureRequest) -> Iterator[Location]:
    """Yield a location of one kind, for the length of the block."""
    tmp_path, monkeypatch = map(request.getfixturevalue, ("tmp_path", "monkeypatch"))
    with _LOCATIONS[kind](request, tmp_path, monkeypatch) as found:
        for path, data in FILES.items():
            found.put(path, data)
        yield found


@pytest.fixture(params=_LOCATIONS)
def location(request: pytest.FixtureRequest) -> Iterator[Location]:
    with locate(request.param, request) as found:
        yield found
