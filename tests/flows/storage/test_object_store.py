"""Whole runs that write to, and read from, a real S3 server; stopped, killed and run again."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.format.manifest import Manifest
from streaming_ext.store.s3 import CHUNK_BYTES
from tests.command_line import (
    PATIENCE_SECONDS,
    CommandLine,
    assert_same_dataset,
    kill_group,
    output_of,
    succeeded,
    wait_for,
    workers_of,
)
from tests.servers.fault_proxy import Faults
from tests.servers.storage.swift import (
    SwiftServer,
    aws_environment,
    download_all,
    s3_client,
    upload,
)


@pytest.fixture
def remote(served, s3) -> CommandLine:
    """The command line with an S3 server."""
    return served.where(**aws_environment(s3.url))


@pytest.fixture
def slow_remote(slow, s3) -> CommandLine:
    """The same on sources of some seconds' work."""
    return slow.where(**aws_environment(s3.url))


def copied(s3: SwiftServer, bucket: str, folder: Path) -> Path:
    return download_all(s3.url, bucket, "out", folder)


def test_the_same_bytes_as_on_disk_and_the_same_commands(
    remote,
    shardmill,
    s3,
    bucket,
    dataset,
    tmp_path,
) -> None:
    url = f"s3://{bucket}/out"
    succeeded(remote.shard(url))
    assert_same_dataset(dataset, copied(s3, bucket, tmp_path / "copy"))

    succeeded(shardmill("verify", url, "--deep"))
    succeeded(shardmill("inspect", url, "--sample", 0))
    succeeded(shardmill("inspect", url))

    client = s3_client(s3.url)
    client.put_object(Bucket=bucket, Key="out/train/00000/shard.00000.mds.zstd", Body=b"damaged")
    client.close()
    verified = shardmill("verify", url)
    assert verified.returncode == 1
    assert "train/00000/shard.00000.mds.zstd" in verified.stdout


# The stock reader leaves the files that it unpacks open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_sources_in_s3(
    remote,
    shardmill,
    s3,
    bucket,
    sources,
    tmp_path,
) -> None:
    upload(s3, bucket, "raw/text", sources)
    output = tmp_path / "out"
    options = {"sources": f"s3://{bucket}/raw/text/*.parquet"}
    succeeded(remote.shard(output, **options))
    manifest = Manifest.model_validate_json((output / "manifest.json").read_bytes())
    names = sorted(file.name for file in sources.glob("*.parquet"))
    assert [part.source.url for part in manifest.parts] == [
        f"s3://{bucket}/raw/text/{name}" for name in names
    ]
    assert all(part.source.version.startswith("etag:") for part in manifest.parts)
    assert not (tmp_path / ".out.scratch").exists()

    succeeded(shardmill("verify", output, "--deep"))
    client = s3_client(s3.url)  # another content under the same name
    body = (sources / names[1]).read_bytes()
    client.put_object(Bucket=bucket, Key=f"raw/text/{names[1]}", Body=body[:-1] + b"\0")
    client.close()
    changed = remote.shard(output, **options)
    assert changed.returncode == 2
    assert names[1] in changed.stderr
    assert "etag:" in changed.stderr


def test_killed_in_the_middle_of_an_upload(
    slow_remote,
    shardmill,
    s3,
    proxy,
    bucket,
    tmp_path,
) -> None:
    """The link is slow, so that the kill comes while a large shard is on its way, in pieces."""
    (tmp_path / "large").mkdir()
    write_large_source(tmp_path / "large/x.parquet")
    large = replace(slow_remote, sources=tmp_path / "large")
    options = {"shard_size": "256MiB", "compression": "none", "holdout_fraction": 0}
    arguments = large.shard_arguments(f"s3://{bucket}/out", **options)
    client = s3_client(s3.url)
    proxy.inflict(Faults(bytes_per_second=20e6))
    run = large.where(AWS_ENDPOINT_URL=proxy.url).start(*arguments)
    wait_for(lambda: proxy.bytes_up > 30e6 or run.poll() is not None)
    kill_group(run)
    proxy.inflict(Faults())
    (left,) = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert left["Key"].startswith("out/train/00000/shard.")
    assert "Contents" not in client.list_objects_v2(Bucket=bucket, Prefix="out/train/")

    succeeded(large.run(*arguments))
    assert client.list_multipart_uploads(Bucket=bucket)["Uploads"] == [left]  # a lifecycle rule's
    found = client.list_objects_v2(Bucket=bucket, Prefix=left["Key"])["Contents"]
    assert [each["Size"] > 2 * CHUNK_BYTES for each in found] == [True]
    client.close()
    succeeded(shardmill("verify", f"s3://{bucket}/out"))


def write_large_source(path: Path) -> None:
    """Little to read, much to write: 70 MB of text, every byte of it a token."""
    texts = pa.array([f"{number} " + "7 " * 500_000 for number in range(70)])
    pq.write_table(pa.table({"text": texts}), path, row_group_size=10, compression="zstd")


def test_ctrl_c_ends_at_once_and_lets_go(slow_remote, s3, proxy, bucket) -> None:
    command = slow_remote.where(AWS_ENDPOINT_URL=proxy.url, SHARDMILL_STORAGE_TIMEOUT="5")
    run = command.start(*command.shard_arguments(f"s3://{bucket}/out", shard_size="64KiB"))
    wait_for(lambda: proxy.bytes_up > 200_000 or run.poll() is not None)
    began = time.monotonic()
    os.killpg(run.pid, signal.SIGINT)
    _, stderr = output_of(run, seconds=PATIENCE_SECONDS)
    assert run.returncode == 130, stderr
    assert time.monotonic() - began < 45
    assert not workers_of(run.pid)
    client = s3_client(s3.url)
    keys = client.list_objects_v2(Bucket=bucket, Prefix="out/runs/.lock")["Contents"]
    (lock,) = (entry["Key"] for entry in keys)
    assert b"released" in client.get_object(Bucket=bucket, Key=lock)["Body"].read()
    client.close()
