"""Whole runs that write to a real S3 server and read from it; stopped, killed and run again."""

import hashlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.store.s3 import CHUNK_BYTES
from tests.command_line import (
    PATIENCE_SECONDS,
    CommandLine,
    assert_same_text,
    ended_as,
    kill_group,
    refused,
    succeeded,
    wait_for,
    workers_of,
)
from tests.servers.fault_proxy import Faults
from tests.servers.storage.swift import (
    NOBODY,
    SwiftServer,
    aws_environment,
    download_all,
    make_bucket,
    s3_client,
    upload,
)
from tests.tasks.core.build_dataset import manifest_of


@pytest.fixture
def slow_remote(slow, s3) -> CommandLine:
    """The command line with an S3 server, on sources of some seconds' work."""
    return slow.where(**aws_environment(s3.url))


READ, WRITE = "X-Container-Read", "X-Container-Write"


def grant(server: SwiftServer, bucket: str, *rights: str) -> None:
    """Let the user who has no right on any bucket read this one, or write to it.

    The request goes to the container server: a login to Swift's own API would need memcached.
    """
    account = "AUTH_test"
    digest = hashlib.md5(f"p/{account}/{bucket}s".encode(), usedforsecurity=False).digest()
    partition = digest[0] >> 4  # the rings have 2^4 of them
    url = f"http://127.0.0.1:{server._ports['container']}/d1/{partition}/{account}/{bucket}"
    headers = {"X-Timestamp": f"{time.time():.5f}"} | dict.fromkeys(rights, NOBODY[0])
    changed = httpx.post(url, headers=headers, timeout=PATIENCE_SECONDS)
    assert changed.is_success, changed.text


def test_from_bucket_to_bucket_with_the_least_rights(
    served, shardmill, s3, bucket, dataset, tmp_path, monkeypatch
) -> None:
    """docs/operate/storage.md lists them: reading the sources, writing and reading the output."""
    raw, url = make_bucket(s3.url), f"s3://{bucket}/out"
    upload(s3, raw, "text", served.sources)
    grant(s3, raw, READ)
    grant(s3, bucket, READ, WRITE)
    for name, value in aws_environment(s3.url, NOBODY).items():
        monkeypatch.setenv(name, value)
    command = served.where(**aws_environment(s3.url, NOBODY))
    options = {"sources": f"s3://{raw}/text/*.parquet"}
    succeeded(command.shard(url, **options))
    copy = download_all(s3.url, bucket, "out", tmp_path / "copy")
    assert_same_text(dataset, copy)
    manifest = manifest_of(copy)
    names = sorted(file.name for file in served.sources.iterdir())
    assert [part.source.url for part in manifest.parts] == [
        f"s3://{raw}/text/{name}" for name in names
    ]
    assert all(part.source.version.startswith("etag:") for part in manifest.parts)
    succeeded(shardmill("verify", url, "--deep"))
    succeeded(shardmill("inspect", url))
    succeeded(shardmill("inspect", url, "--sample", 0))

    refused(command.shard(f"s3://{raw}/out"), raw, code=1)

    client = s3_client(s3.url)  # other content under the same name
    body = (served.sources / names[1]).read_bytes()
    client.put_object(Bucket=raw, Key=f"text/{names[1]}", Body=body[:-1] + b"\0")
    refused(shardmill(*command.shard_arguments(url, **options), "--dry-run"), names[1], "etag:")
    shard = "train/00000/shard.00000.mds.zstd"
    client.put_object(Bucket=bucket, Key=f"out/{shard}", Body=b"damaged")
    client.close()
    damaged = refused(shardmill("verify", url), code=1)
    assert shard in damaged.stdout


def test_killed_in_the_middle_of_an_upload(
    slow_remote,
    shardmill,
    s3,
    proxy,
    bucket,
    tmp_path,
) -> None:
    """The link is slow, so that the kill comes while a large shard is uploaded in chunks."""
    (tmp_path / "large").mkdir()
    write_large_source(tmp_path / "large/x.parquet")
    large = replace(slow_remote, sources=tmp_path / "large")
    options = {"shard_size": "256MiB", "compression": "none", "holdout_fraction": 0}
    arguments = large.shard_arguments(f"s3://{bucket}/out", **options)
    client = s3_client(s3.url)
    proxy.inflict(Faults(bytes_per_second=20e6))
    run = large.where(AWS_ENDPOINT_URL=proxy.url).start(*arguments)
    wait_for(lambda: proxy.bytes_up > 30e6, run)
    kill_group(run)
    proxy.inflict(Faults())
    (left,) = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert left["Key"].startswith("out/train/00000/shard.")
    assert "Contents" not in client.list_objects_v2(Bucket=bucket, Prefix="out/train/")

    succeeded(large.run(*arguments))
    assert client.list_multipart_uploads(Bucket=bucket)["Uploads"] == [left]  # for a lifecycle rule
    found = client.list_objects_v2(Bucket=bucket, Prefix=left["Key"])["Contents"]
    assert [each["Size"] > 2 * CHUNK_BYTES for each in found] == [True]
    client.close()
    succeeded(shardmill("verify", f"s3://{bucket}/out"))


def write_large_source(path: Path) -> None:
    """Write a source that is small to read and large to write: 70 MB of text, each byte a token."""
    texts = pa.array([f"{number} " + "7 " * 500_000 for number in range(70)])
    pq.write_table(pa.table({"text": texts}), path, row_group_size=10, compression="zstd")


def test_ctrl_c_ends_at_once_and_lets_go(slow_remote, s3, proxy, bucket) -> None:
    command = slow_remote.where(AWS_ENDPOINT_URL=proxy.url, SHARDMILL_STORAGE_TIMEOUT="5")
    run = command.start(*command.shard_arguments(f"s3://{bucket}/out", shard_size="64KiB"))
    wait_for(lambda: proxy.bytes_up > 200_000, run)
    began = time.monotonic()
    os.killpg(run.pid, signal.SIGINT)
    ended_as(run, 130)
    assert time.monotonic() - began < 45
    assert not workers_of(run.pid)
    client = s3_client(s3.url)
    keys = client.list_objects_v2(Bucket=bucket, Prefix="out/runs/.lock")["Contents"]
    (lock,) = (entry["Key"] for entry in keys)
    assert b"released" in client.get_object(Bucket=bucket, Key=lock)["Body"].read()
    client.close()
