"""A dataset on the Hub: sharded to S3, killed, resumed, verified and read back, with no leak.

All of it goes as README says, on an offline Hub and a real S3 server.
"""

import sqlite3
import time
from collections.abc import Iterator

import pytest

from tests.command_line import (
    CommandLine,
    assert_same_text,
    kill_group,
    refused,
    run_program,
    succeeded,
    wait_for,
)
from tests.servers.hub import Dataset, Hub, hub_server
from tests.servers.prefect.database import give_database
from tests.servers.storage.swift import OWNER, aws_environment, download_all, is_held
from tests.tasks.core.build_dataset import manifest_of
from tests.test_readme import blocks, search_path, with_tokenizer


@pytest.fixture(scope="module")
def hub(sources) -> Iterator[Hub]:
    """A Hub that holds the session's files in the layout of FineWeb-Edu."""
    files = sorted(sources.glob("*.parquet"))
    with hub_server() as running:
        dataset = running.datasets["org/text"] = Dataset()
        dataset.commit({f"sample/10BT/{file.name}": file.read_bytes() for file in files})
        yield running


@pytest.fixture
def online(embedded, api_url, hub, s3, tmp_path) -> CommandLine:
    hub.reset()
    return embedded.where(
        **aws_environment(s3.url),
        PREFECT_API_URL=api_url,
        HF_ENDPOINT=hub.url,
        HF_HOME=str(tmp_path / "hf"),
        TMPDIR=str(tmp_path),
    )


OPTIONS = {"sources": "org/text", "hub_config": "sample-10BT"}


# The stock reader does not close the files that it unpacks.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_whole_story(
    online,
    hub,
    s3,
    bucket,
    dataset,
    tmp_path,
    monkeypatch,
) -> None:
    from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
    from streaming_ext.training.stock import streaming

    url = f"s3://{bucket}/out"
    run = online.start(*online.shard_arguments(url, engine="reference", **OPTIONS))
    wait_for(lambda: is_held(s3.url, bucket), run)
    time.sleep(0.3)
    kill_group(run)

    hub.reset()
    hub.cuts = [1000, 5000]
    hub.busy, hub.retry_after = 1, "1"
    succeeded(online.shard(url, **OPTIONS))
    assert hub.requests["revision"] == 2  # the busy Hub refused the first one
    copy = download_all(s3.url, bucket, "out", tmp_path / "copy")
    manifest = manifest_of(copy)
    commit = list(hub.datasets["org/text"].commits)[-1]
    assert all(
        part.source.url.startswith(f"hf://datasets/org/text@{commit}/sample/10BT/")
        and part.source.version.startswith("sha256:")
        for part in manifest.parts
    )
    assert_same_text(copy, dataset)

    succeeded(online.run("verify", url, "--deep"))
    assert not list(tmp_path.glob("shardmill-*/.*"))  # no scratch is left

    hub.datasets["org/text"].commit({**hub.datasets["org/text"].commits[commit], "README.md": b""})
    refused(online.shard(url, **OPTIONS), f"hf://datasets/org/text@{commit}/")
    pinned = f"hf://datasets/org/text@{commit}/sample/10BT/*.parquet"
    hub.reset()
    succeeded(online.shard(url, sources=pinned))
    assert hub.requests["resolve"] <= 1  # the footer of the first file; nothing is fetched again

    monkeypatch.setenv("S3_ENDPOINT_URL", s3.url)
    samples = manifest.splits["train"].samples
    stock = streaming.StreamingDataset(
        remote=f"{url}/train", local=str(tmp_path / "stock"), batch_size=1, shuffle=False
    )
    assert len(stock) == samples
    theirs = [stock[index]["tokens"].tolist() for index in range(samples)]
    mine = StreamingTokenDataset(
        remote=url,
        local=str(tmp_path / "mine"),
        batch_size=1,
        shuffle=False,
        dp_rank=0,
        dp_world_size=1,
    )
    assert mine.size == samples
    loader = StreamingTokenLoader(mine)
    assert [row for batch in loader for row in batch["tokens"].tolist()] == theirs


def test_the_commands_of_the_documents(online, bucket, tmp_path) -> None:
    """README's commands are the first of docs/how-to/object-storage.md; then docs/how-to/hub.md."""
    (script,) = blocks("docs/how-to/object-storage.md", "bash")
    (to_disk,) = blocks("docs/how-to/hub.md", "bash")
    (short,) = [block for block in blocks("README.md", "bash") if "s3://" in block]
    assert script.startswith(short)
    script += to_disk
    script = script.replace("HuggingFaceFW/fineweb-edu", "org/text")
    script = with_tokenizer(script.replace("s3://bucket", f"s3://{bucket}"), online.tokenizer)
    env = {**online.env, "PATH": search_path()}
    ended = succeeded(run_program("bash", "-euxc", script, env=env, folder=tmp_path))
    assert f"s3://{bucket}/fineweb-edu-10bt: sound" in ended.stdout


def test_no_secret_is_reported(embedded, hub, s3, bucket, tmp_path) -> None:
    """Secrets planted in the environment are in nothing that a run leaves behind."""
    hub.reset()
    home = tmp_path / "new" / "prefect"
    give_database(home)  # creating it takes longer than the runs
    command = embedded.where(
        **aws_environment(s3.url),
        HF_ENDPOINT=hub.url,
        HF_HOME=str(tmp_path / "hf"),
        HF_TOKEN=hub.token,
        TMPDIR=str(tmp_path),
        PREFECT_HOME=str(home),
        PREFECT_LOGGING_LEVEL="DEBUG",
    )
    url = f"s3://{bucket}/out"
    good = succeeded(command.shard(url, **OPTIONS))
    wrong = {"AWS_SECRET_ACCESS_KEY": "planted-wrong-key", "HF_TOKEN": "hf_planted_wrong"}
    said = good.stdout + good.stderr
    for changed in (wrong, {**wrong, "HF_TOKEN": hub.token}):
        bad = command.where(**changed).shard(url, **OPTIONS)
        assert bad.returncode == 1
        said += bad.stdout + bad.stderr
    download_all(s3.url, bucket, "out", tmp_path / "copy")
    secrets = [OWNER[1], hub.token, "planted-wrong-key", "hf_planted_wrong"]
    assert not [secret for secret in secrets if secret in said]
    (database,) = home.rglob("*.db")
    with sqlite3.connect(database) as connection:
        connection.execute("pragma wal_checkpoint(full)")
        (runs,) = connection.execute("select count(*) from task_run").fetchone()
    connection.close()
    assert runs > 0  # this is the database of these runs
    looked_at = 0
    for file in tmp_path.rglob("*"):
        if file.is_file():
            looked_at += 1
            data = file.read_bytes()
            assert not [secret for secret in secrets if secret.encode() in data], file
    assert looked_at > 20


def test_sources_that_cannot_be_checked(online, hub, tmp_path) -> None:
    """A plain URL, whose server offers no hash: reported at the end, or refused at once."""
    commit, files = hub.datasets["org/text"].at("main") or ("", {})
    source = f"{hub.url}/datasets/org/text/resolve/{commit}/{max(files)}"
    command = online.shard_arguments(tmp_path / "out", sources=source)
    ended = refused(online.run(*command, "--check-sources"), code=1)
    assert "cannot be checked: its server offers no hash" in " ".join(ended.stdout.split())
    taken = succeeded(online.run(*command))
    assert "1 source file not checked: the store has no hash" in taken.stdout
