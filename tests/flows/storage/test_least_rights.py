"""Runs with the least rights on object storage that docs/operate/storage.md lists."""

import hashlib
import time

import httpx
import pytest

from tests.command_line import PATIENCE_SECONDS, CommandLine, succeeded
from tests.servers.storage.swift import (
    NOBODY,
    SwiftServer,
    aws_environment,
    download_all,
    make_bucket,
    upload,
)

READ, WRITE = "X-Container-Read", "X-Container-Write"


def grant(server: SwiftServer, bucket: str, *rights: str) -> None:
    """Let the user who has no right on any bucket read this one, or write to it.

    Told to the container server itself: logging in to Swift's own API would need memcached.
    """
    account = "AUTH_test"
    digest = hashlib.md5(f"p/{account}/{bucket}s".encode(), usedforsecurity=False).digest()
    partition = digest[0] >> 4  # the rings have 2^4 of them
    place = f"http://127.0.0.1:{server._ports['container']}/d1/{partition}/{account}/{bucket}"
    printed = {"X-Timestamp": f"{time.time():.5f}"} | dict.fromkeys(rights, NOBODY[0])
    changed = httpx.post(place, headers=printed, timeout=PATIENCE_SECONDS)
    assert changed.is_success, changed.text


@pytest.fixture
def limited(served, s3) -> CommandLine:
    """The command line with the credentials of that user."""
    return served.where(**aws_environment(s3.url, NOBODY))


def test_reading_here_and_writing_there_is_enough(
    limited, s3, bucket, dataset, tmp_path,
    shardmill, monkeypatch,
) -> None:  # fmt: skip
    sources = make_bucket(s3.url)
    upload(s3, sources, "raw", limited.sources)
    grant(s3, sources, READ)
    grant(s3, bucket, READ, WRITE)
    ended = succeeded(limited.shard(f"s3://{bucket}/out", sources=f"s3://{sources}/raw"))
    for name, value in aws_environment(s3.url, NOBODY).items():
        monkeypatch.setenv(name, value)
    succeeded(shardmill("verify", f"s3://{bucket}/out", "--deep"))
    copy = download_all(s3.url, bucket, "out", tmp_path / "copy")
    assert (copy / "train/index.json").read_bytes() == (dataset / "train/index.json").read_bytes()
    # and the credentials really are that weak
    ended = limited.shard(f"s3://{sources}/out")
    assert ended.returncode == 1
    assert sources in ended.stderr
    assert "Traceback" not in ended.stderr
