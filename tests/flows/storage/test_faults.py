"""The effect of faults of S3, and of the way to it, on whole runs: none, or one clear error."""

import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.command_line import (
    CommandLine,
    assert_same_dataset,
    ended_as,
    refused,
    succeeded,
    wait_for,
    workers_of,
)
from tests.flows.conftest import undisturbed_by
from tests.servers.fault_proxy import FaultProxy, Faults
from tests.servers.storage.swift import (
    aws_environment,
    download_all,
    is_held,
    s3_client,
    upload,
)


@pytest.fixture
def remote(slow, s3) -> CommandLine:
    """The command line with an S3 server and slow sources; it gives up soon."""
    return slow.where(**aws_environment(s3.url), SHARDMILL_STORAGE_TIMEOUT="5")


def behind(proxy: FaultProxy, command: CommandLine, seconds: float = 5) -> CommandLine:
    """Return the same command line, with all its S3 traffic through the proxy."""
    return command.where(AWS_ENDPOINT_URL=proxy.url, SHARDMILL_STORAGE_TIMEOUT=str(seconds))


@pytest.fixture(scope="module")
def expected(slow, tmp_path_factory) -> Path:
    """The dataset of the slow sources in small shards, made undisturbed."""
    output = tmp_path_factory.mktemp("expected") / "out"
    return undisturbed_by(slow, output, shard_size="64KiB")


def struck_by(faults: Faults, proxy: FaultProxy, run: "subprocess.Popen[str]") -> int:
    """Inflict faults until one strikes a request of the run, or the run ends; return the number of
    connections struck."""
    proxy.inflict(faults)
    wait_for(lambda: proxy.struck, run)
    time.sleep(0.5)
    struck = proxy.struck
    proxy.inflict(Faults())
    return struck


PASSING = (
    Faults(answer=(503, "SlowDown"), times=3),
    Faults(cut_up=30_000, times=2),
    Faults(cut_down=200, times=2),
)


def test_faults_that_pass_leave_no_trace(remote, s3, proxy, bucket, expected, tmp_path) -> None:
    command = behind(proxy, remote, seconds=30)  # several faults in a row need the usual patience
    struck = dict.fromkeys(PASSING, 0)
    for name in ("one", "two", "three"):  # again if a run was faster than a fault
        run = command.start(*command.shard_arguments(f"s3://{bucket}/{name}", shard_size="64KiB"))
        wait_for(lambda name=name: is_held(s3.url, bucket, name), run)
        for faults in PASSING:
            struck[faults] += struck_by(faults, proxy, run)
        ended_as(run)
        assert_same_dataset(expected, download_all(s3.url, bucket, name, tmp_path / name))
        if all(struck.values()):
            break
    assert all(struck.values()), struck


def test_sources_that_hang_for_ever(remote, s3, proxy, bucket, tmp_path) -> None:
    """They hang from the middle of the run on; it ends by itself, names the cause and resumes."""
    upload(s3, bucket, "raw", remote.sources)
    output, raw = tmp_path / "out", f"s3://{bucket}/raw"
    command = behind(proxy, remote, seconds=1)
    arguments = command.shard_arguments(output, sources=raw, shard_size="64KiB", workers=1)
    proxy.inflict(Faults(bytes_per_second=5e5))
    run = command.start(*arguments)
    wait_for(lambda: list((tmp_path / ".out.scratch").rglob("*.partial")), run)
    proxy.inflict(Faults(hang=True))
    _, stderr = ended_as(run, 1, seconds=180)
    assert "timeout" in stderr.lower()
    assert raw in stderr
    assert "Traceback" not in stderr
    assert not (output / "manifest.json").exists()
    proxy.inflict(Faults())
    succeeded(command.run(*arguments))


def test_a_source_that_changes_between_listing_and_reading(served, s3, bucket, tmp_path) -> None:
    raw, output, now = f"s3://{bucket}/raw", tmp_path / "out", tmp_path / "now"
    shutil.copytree(served.sources, now)
    upload(s3, bucket, "raw", now)
    command = served.where(**aws_environment(s3.url))
    run = command.start(*command.shard_arguments(output, sources=raw))
    wait_for(lambda: workers_of(run.pid), run)
    # All files are listed, and no worker takes another one.
    parent = psutil.Process(run.pid)
    parent.suspend()
    first, *others, last = sorted(now.iterdir())
    shutil.copy(first, last)
    upload(s3, bucket, "raw", now)
    parent.resume()
    stdout, _ = ended_as(run, 1)
    assert f"{raw}/{last.name}: download: changed since the run began" in stdout
    parts = [f"{number:05}.json" for number in range(len(others) + 1)]
    assert sorted(file.name for file in (output / "parts").iterdir()) == parts
    assert not (output / "manifest.json").exists()
    succeeded(command.shard(output, sources=raw))  # the file is taken as it is now
    local = undisturbed_by(command, tmp_path / "local", sources=[str(now)])
    assert (output / "train/index.json").read_bytes() == (local / "train/index.json").read_bytes()


@pytest.mark.parametrize(
    ("output", "env", "code", "words"),
    [
        ("out", {"AWS_SECRET_ACCESS_KEY": "planted-wrong-secret"}, 1, "SignatureDoesNotMatch"),
        ("out", {"AWS_ENDPOINT_URL": "hung"}, 1, "tried 3 times"),
        ("taken", {}, 2, "thesis.tex"),
    ],
)
def test_refusals(
    served,
    s3,
    proxy,
    bucket,
    output,
    env,
    code,
    words,
) -> None:
    """A run is refused before any work, with one error that names the bucket and the cause."""
    client = s3_client(s3.url)
    client.put_object(Bucket=bucket, Key="taken/thesis.tex", Body=b"mine")
    proxy.inflict(Faults(hang=True))
    given = {name: proxy.url if value == "hung" else value for name, value in env.items()}
    own = {**aws_environment(s3.url), "SHARDMILL_STORAGE_TIMEOUT": "1", **given}
    ended = refused(served.where(**own).shard(f"s3://{bucket}/{output}"), words, bucket, code=code)
    assert "planted-wrong-secret" not in ended.stderr + ended.stdout
    assert client.get_object(Bucket=bucket, Key="taken/thesis.tex")["Body"].read() == b"mine"
    client.close()
