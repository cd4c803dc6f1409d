"""Whole runs from and to Google's and Azure's object storage, killed and resumed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from streaming_ext.format.manifest import Manifest
from tests.command_line import PATIENCE_SECONDS, CommandLine, assert_same_text, succeeded, wait_for
from tests.servers.storage.azurite import container_client, download_container, make_container

READ_BOTH = """
import sys
from streaming_ext import StreamingTokenDataset, StreamingTokenLoader

def epoch(**where):
    loader = StreamingTokenLoader(StreamingTokenDataset(**where, batch_size=64), num_workers=1)
    return [batch["tokens"].tolist() for batch in loader]

remote, cache, copy = sys.argv[1:]
streamed = epoch(remote=remote, local=cache)
assert len(streamed) > 1
assert streamed == epoch(local=copy)
"""


@dataclass(frozen=True)
class Cloud:
    """A bucket of one provider, looked at with clients that know nothing of this project."""

    url: str
    environment: dict[str, str]
    put: Callable[[str, bytes], object]
    download: Callable[[str, Path], Path]


@pytest.fixture(params=["gs", "az"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    if request.param == "gs":
        gcs = request.getfixturevalue("gcs_session")
        bucket = gcs.make_bucket()
        return Cloud(
            f"gs://{bucket}",
            gcs.environment(),
            lambda name, data: gcs.put(bucket, name, data),
            lambda prefix, folder: gcs.download_all(bucket, prefix, folder),
        )
    azurite = request.getfixturevalue("azurite_session")
    name = make_container(azurite)

    def put(path: str, data: bytes) -> None:
        with container_client(azurite, name) as client:
            client.upload_blob(path, data)

    return Cloud(
        f"az://{name}",
        azurite.environment(),
        put,
        lambda prefix, folder: download_container(azurite, name, prefix, folder),
    )


@pytest.mark.soak
def test_killed_resumed_verified(
    cloud: Cloud, slow: CommandLine, undisturbed: Path, tmp_path: Path
) -> None:
    """The bytes are those of a run from disk to disk."""
    command = slow.where(**cloud.environment, TMPDIR=str(tmp_path))
    for file in slow.sources.glob("*.parquet"):
        cloud.put(f"raw/{file.name}", file.read_bytes())
    output = f"{cloud.url}/some/out"
    arguments = command.shard_arguments(output, sources=f"{cloud.url}/raw", engine="reference")
    run = command.start(*arguments)
    # Two files are in hand; there are four.
    wait_for(lambda: len(list(tmp_path.rglob("documents/*.parquet"))) >= 2)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    before = cloud.download("some/out", tmp_path / "before")
    assert not (before / "manifest.json").exists()

    succeeded(command.run(*arguments))
    verified = succeeded(command.run("verify", output, "--deep"))
    assert f"{output}: sound" in verified.stdout
    copy = cloud.download("some/out", tmp_path / "copy")
    manifest = Manifest.model_validate_json((copy / "manifest.json").read_bytes())
    assert all(part.source.url.startswith(f"{cloud.url}/raw/") for part in manifest.parts)
    assert_same_text(copy, undisturbed)
    assert not list(tmp_path.glob("shardmill-*/.*"))  # no scratch is left

    shown = succeeded(command.run("inspect", output, "--sample", "0"))
    assert shown.stdout == command.run("inspect", copy, "--sample", "0").stdout
    reader = [sys.executable, "-c", READ_BOTH, output, tmp_path / "cache", copy]
    read = subprocess.run(
        reader,
        env=command.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert read.returncode == 0, read.stderr
