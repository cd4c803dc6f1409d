"""A bucket behind a proxy; faults strike its objects or the connection while training reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers.fault_proxy import FaultProxy, Faults, fault_proxy
from tests.servers.storage.swift import SwiftServer, s3_client

PASSING = {
    "503": Faults(answer=(503, "SlowDown"), times=2),
    "cut": Faults(cut_down=700, times=2),
}
SECONDS = "3"  # that a server may stay silent; pauses shorten with it


class FaultyStore:
    """A bucket with the files of a folder."""

    def __init__(self, folder: Path, client: Any, bucket: str, proxy: FaultProxy) -> None:
        """Upload the files."""
        self._folder, self._client, self._bucket, self.proxy = folder, client, bucket, proxy
        self.url = f"s3://{bucket}/in/{{0..2}}.jsonl"
        for file in folder.glob("[0-2].jsonl"):
            self.put(file.name)

    def put(self, name: str, *, changed: bool = False) -> None:
        """Upload a file of the folder, as it is or with one byte of its text changed."""
        data = (self._folder / name).read_bytes()
        if changed:
            at = data.rindex(b'"text": "') + 9
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        self._client.put_object(Bucket=self._bucket, Key=f"in/{name}", Body=data)

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._client.delete_object(Bucket=self._bucket, Key=f"in/{name}")

    def spoil(self, how: str) -> None:
        """Cause a fault that no waiting repairs: one of `LASTING`."""
        if how == "gone":
            self.delete("2.jsonl")
        elif how == "changed":
            self.put("2.jsonl", changed=True)
        else:
            self.proxy.inflict(Faults(answer=(503, "SlowDown")))

    def mend(self) -> None:
        """Undo every fault."""
        self.proxy.inflict(Faults())
        self.put("2.jsonl")


LASTING = {
    "gone": r"/2\.jsonl: gone",
    "changed": r"/2\.jsonl.*changed",
    "busy": r"/[0-2]\.jsonl.*SlowDown",
}


@contextmanager
def faulty_store(
    folder: Path, server: SwiftServer, monkeypatch: pytest.MonkeyPatch, *, bucket: str
) -> Iterator[FaultyStore]:
    """Serve a folder from a bucket; all requests go through the proxy."""
    client = s3_client(server.url)
    with fault_proxy(server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("SHARDMILL_STORAGE_TIMEOUT", SECONDS)
        yield FaultyStore(folder, client, bucket, proxy)
    client.close()
