"""Whole runs that write to, and read from, a real S3 server; and what faults make of them."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming_ext.manifest import Manifest
from tests.command_line import CommandLine, assert_same_dataset, wait_for, workers_of
from tests.servers.fault_proxy import FaultProxy, Faults, fault_proxy
from tests.servers.swift import (
    NOBODY,
    SwiftServer,
    aws_environment,
    download_all,
    make_bucket,
    s3_client,
)


@pytest.fixture
def remote(served: CommandLine, s3: SwiftServer) -> CommandLine:
    """The command line with an S3 server."""
    env = {**served.env, **aws_environment(s3.url)}
    return CommandLine(env, served.tokenizer, served.sources)


@pytest.fixture
def slow_remote(slow: CommandLine, remote: CommandLine) -> CommandLine:
    """The same on sources of some seconds' work."""
    return CommandLine(remote.env, slow.tokenizer, slow.sources)


@pytest.fixture
def proxy(s3: SwiftServer) -> Iterator[FaultProxy]:
    with fault_proxy(s3.port) as running:
        yield running


def behind(proxy: FaultProxy, command: CommandLine) -> CommandLine:
    """The same commands, with all their S3 traffic through the proxy."""
    env = {**command.env, "AWS_ENDPOINT_URL": proxy.url, "SHARDMILL_STORAGE_TIMEOUT": "5"}
    return CommandLine(env, command.tokenizer, command.sources)


def copied(s3: SwiftServer, bucket: str, folder: Path) -> Path:
    return download_all(s3.url, bucket, "out", folder)


def upload(s3: SwiftServer, bucket: str, prefix: str, folder: Path) -> None:
    client = s3_client(s3.url)
    for file in folder.glob("*.parquet"):
        client.put_object(Bucket=bucket, Key=f"{prefix}/{file.name}", Body=file.read_bytes())
    client.close()


def recorded(s3: SwiftServer, bucket: str) -> set[str]:
    client = s3_client(s3.url)
    found = client.list_objects_v2(Bucket=bucket, Prefix="out/parts/").get("Contents", [])
    client.close()
    return {entry["Key"] for entry in found}


def test_the_same_bytes_as_on_disk_and_the_same_commands(
    remote: CommandLine, s3: SwiftServer, bucket: str, dataset: Path, tmp_path: Path
) -> None:
    url = f"s3://{bucket}/out"
    ended = remote.shard(url)
    assert ended.returncode == 0, ended.stderr
    assert_same_dataset(dataset, copied(s3, bucket, tmp_path / "copy"))

    again = remote.shard(url)
    assert again.returncode == 0, again.stderr
    verified = remote.run("verify", url, "--deep")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    shown = remote.run("inspect", url, "--sample", 0)
    assert shown.returncode == 0, shown.stderr
    assert remote.run("inspect", url).returncode == 0

    client = s3_client(s3.url)
    client.put_object(Bucket=bucket, Key="out/train/00000/shard.00000.mds.zstd", Body=b"damaged")
    client.close()
    verified = remote.run("verify", url)
    assert verified.returncode == 1
    assert "train/00000/shard.00000.mds.zstd" in verified.stdout
    changed = remote.shard(url, sequence_length=64)
    assert changed.returncode == 2
    assert "sequence_length: the output has 128, this run asks for 64" in changed.stderr


# The stock reader leaves the files that it unpacks open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_sources_in_s3(
    remote: CommandLine, s3: SwiftServer, bucket: str, sources: Path, tmp_path: Path
) -> None:
    upload(s3, bucket, "raw/text", sources)
    output = tmp_path / "out"
    options = {"sources": f"s3://{bucket}/raw/text/*.parquet"}
    ended = remote.shard(output, **options)
    assert ended.returncode == 0, ended.stderr
    manifest = Manifest.model_validate_json((output / "manifest.json").read_bytes())
    names = sorted(file.name for file in sources.glob("*.parquet"))
    assert [part.source.url for part in manifest.parts] == [
        f"s3://{bucket}/raw/text/{name}" for name in names
    ]
    assert all(part.source.version.startswith("etag:") for part in manifest.parts)
    assert not (tmp_path / ".out.scratch").exists()

    verified = remote.run("verify", output, "--deep")
    assert verified.returncode == 0, verified.stdout
    client = s3_client(s3.url)  # another content under the same name
    body = (sources / names[1]).read_bytes()
    client.put_object(Bucket=bucket, Key=f"raw/text/{names[1]}", Body=body[:-1] + b"\0")
    client.close()
    changed = remote.shard(output, **options)
    assert changed.returncode == 2
    assert names[1] in changed.stderr
    assert "etag:" in changed.stderr


def test_killed_again_and_again(
    slow_remote: CommandLine, s3: SwiftServer, bucket: str, undisturbed: Path, tmp_path: Path
) -> None:
    """From disk to S3; what a killed run recorded is kept, and the end is the same bytes."""
    rng = random.Random(5)
    arguments = slow_remote.shard_arguments(f"s3://{bucket}/out", engine="reference")
    kept: set[str] = set()
    for _ in range(3):
        run = slow_remote.start(*arguments)
        wait_for(lambda run=run: workers_of(run.pid) or run.poll() is not None)
        time.sleep(rng.uniform(1.0, 4.0))
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        now = recorded(s3, bucket)
        assert kept <= now
        kept = now
        if run.returncode == 0:  # it came to its end before the kill
            break
    ended = slow_remote.run(*arguments)
    assert ended.returncode == 0, ended.stderr
    assert f"{len(kept)} done before" in ended.stdout or len(kept) in {0, 4}  # 4: it was whole
    assert_same_dataset(undisturbed, copied(s3, bucket, tmp_path / "copy"))


@pytest.mark.parametrize("fault", ["slow", "cuts", "object server", "hang"])
def test_faults_that_pass_leave_no_trace(
    slow_remote: CommandLine,
    s3: SwiftServer,
    proxy: FaultProxy,
    bucket: str,
    undisturbed: Path,
    tmp_path: Path,
    fault: str,
) -> None:
    command = behind(proxy, slow_remote)
    arguments = command.shard_arguments(f"s3://{bucket}/out", shard_size="64KiB")
    rng = random.Random(7)
    run = command.start(*arguments)
    struck = 0
    wait_for(lambda: workers_of(run.pid) or run.poll() is not None)
    for _ in range(6):
        if fault == "slow":
            proxy.inflict(Faults(answer=(503, "SlowDown"), times=3))
        elif fault == "cuts":
            proxy.inflict(
                Faults(cut_up=rng.randrange(100, 60_000), times=2)
                if rng.random() < 0.5
                else Faults(cut_down=rng.randrange(1, 400), times=2)
            )
        elif fault == "hang":
            s3.pause("object")
            time.sleep(0.7)
            s3.resume("object")
            struck += 1
        elif struck < 2:
            s3.kill("object")
            time.sleep(0.3)
            s3.start("object")
            struck += 1
        time.sleep(1.0)
        struck += proxy.struck
    proxy.inflict(Faults())
    _, stderr = run.communicate()
    assert run.returncode == 0, stderr
    assert struck > 0
    local = tmp_path / "local"
    assert slow_remote.shard(local, shard_size="64KiB").returncode == 0
    assert_same_dataset(local, copied(s3, bucket, tmp_path / "copy"))


def test_killed_in_the_middle_of_an_upload(
    slow_remote: CommandLine,
    s3: SwiftServer,
    proxy: FaultProxy,
    bucket: str,
    tmp_path: Path,
) -> None:
    """The link is slow, so that the kill comes while shards are on their way."""
    client = s3_client(s3.url)  # what a killed run leaves of a large file
    client.create_multipart_upload(Bucket=bucket, Key="out/train/00000/shard.00000.mds")
    options = {"shard_size": "1MiB", "compression": "none"}
    command = behind(proxy, slow_remote)
    arguments = command.shard_arguments(f"s3://{bucket}/out", **options)
    run = command.start(*arguments)
    wait_for(lambda: workers_of(run.pid) or run.poll() is not None)
    proxy.inflict(Faults(bytes_per_second=100_000))
    wait_for(lambda: proxy.bytes_up > 500_000 or run.poll() is not None)
    assert run.poll() is None
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    proxy.inflict(Faults())
    local = tmp_path / "local"
    assert slow_remote.shard(local, **options).returncode == 0
    pages = client.list_objects_v2(Bucket=bucket, Prefix="out/train/")
    for entry in pages.get("Contents", []):  # what is there is whole
        whole = (local / entry["Key"].removeprefix("out/")).stat().st_size
        assert entry["Size"] == whole
    ended = command.run(*arguments)
    assert ended.returncode == 0, ended.stderr
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)
    client.close()
    assert_same_dataset(local, copied(s3, bucket, tmp_path / "copy"))


def test_ctrl_c_ends_at_once_and_lets_go(
    slow_remote: CommandLine, s3: SwiftServer, proxy: FaultProxy, bucket: str
) -> None:
    command = behind(proxy, slow_remote)
    run = command.start(*command.shard_arguments(f"s3://{bucket}/out", shard_size="64KiB"))
    wait_for(lambda: workers_of(run.pid) or run.poll() is not None)
    wait_for(lambda: proxy.bytes_up > 200_000 or run.poll() is not None)
    began = time.monotonic()
    os.killpg(run.pid, signal.SIGINT)
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == 130, stderr
    assert time.monotonic() - began < 15
    assert not workers_of(run.pid)
    client = s3_client(s3.url)
    keys = client.list_objects_v2(Bucket=bucket, Prefix="out/runs/.lock")["Contents"]
    (lock,) = (entry["Key"] for entry in keys)
    assert b"released" in client.get_object(Bucket=bucket, Key=lock)["Body"].read()
    client.close()


class TestRefused:
    """One line that names bucket and cause, at once."""

    @pytest.mark.parametrize(
        ("env", "words"),
        [
            ({"AWS_SECRET_ACCESS_KEY": "planted-wrong-secret"}, "the secret is wrong"),
            ({"AWS_ACCESS_KEY_ID": NOBODY[0], "AWS_SECRET_ACCESS_KEY": NOBODY[1]}, "no right"),
            ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no credentials"),
            ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "127.0.0.1:9"),
        ],
    )
    def test_is_told(
        self, remote: CommandLine, bucket: str, env: dict[str, str], words: str
    ) -> None:
        changed = {name: value for name, value in {**remote.env, **env}.items() if value}
        command = CommandLine(changed, remote.tokenizer, remote.sources)
        ended = command.shard(f"s3://{bucket}/out")
        assert ended.returncode == 1
        assert words in ended.stderr
        assert bucket in ended.stderr
        assert "Traceback" not in ended.stderr
        assert "planted-wrong-secret" not in ended.stderr + ended.stdout

    def test_missing_bucket(self, remote: CommandLine) -> None:
        ended = remote.shard("s3://nonesuch/out")
        assert ended.returncode == 1
        assert "there is no bucket 'nonesuch'" in ended.stderr

    def test_bucket_of_something_else(
        self, remote: CommandLine, s3: SwiftServer, bucket: str
    ) -> None:
        client = s3_client(s3.url)
        client.put_object(Bucket=bucket, Key="out/thesis.tex", Body=b"mine")
        ended = remote.shard(f"s3://{bucket}/out")
        assert ended.returncode == 2
        assert "thesis.tex" in ended.stderr
        assert client.get_object(Bucket=bucket, Key="out/thesis.tex")["Body"].read() == b"mine"
        client.close()

    def test_slow_down_for_ever(self, remote: CommandLine, proxy: FaultProxy, bucket: str) -> None:
        proxy.inflict(Faults(answer=(503, "SlowDown")))
        command = behind(proxy, remote)
        ended = command.shard(f"s3://{bucket}/out")
        assert ended.returncode == 1
        assert "SlowDown" in ended.stderr
        assert bucket in ended.stderr

    def test_two_runs_at_once(self, slow_remote: CommandLine, s3: SwiftServer, bucket: str) -> None:
        arguments = slow_remote.shard_arguments(f"s3://{bucket}/out", engine="reference")
        first = slow_remote.start(*arguments)
        try:
            wait_for(lambda: workers_of(first.pid))
            second = slow_remote.run(*arguments)
            assert second.returncode == 2
            assert "Another run is writing" in second.stderr
        finally:
            first.kill()
            first.communicate()


def test_the_bucket_is_never_made(remote: CommandLine, s3: SwiftServer) -> None:
    name = make_bucket(s3.url)
    client = s3_client(s3.url)
    client.delete_bucket(Bucket=name)
    assert remote.shard(f"s3://{name}/out").returncode == 1
    assert name not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]
    client.close()
