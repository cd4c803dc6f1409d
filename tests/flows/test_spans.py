"""Runs over spans of large files and over joined small files: killed, and from S3."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.core.synthetic import make_documents
from tests.command_line import (
    CommandLine,
    assert_same_dataset,
    changed_at,
    kill_group,
    succeeded,
    wait_for,
    workers_of,
)
from tests.flows.conftest import undisturbed_by
from tests.servers.storage.swift import aws_environment, upload
from tests.tasks.core.build_dataset import manifest_of

OPTIONS = {"part_size": "400KiB", "min_part_size": "200KiB", "engine": "reference", "workers": 2}


@pytest.fixture(scope="module")
def mixed(served, tmp_path_factory) -> CommandLine:
    """A file that keeps the reference engine busy for some seconds, and a dozen small ones."""
    folder = tmp_path_factory.mktemp("mixed")
    lines = [json.dumps({"text": text}) + "\n" for text in make_documents(1500, seed=4)]
    (folder / "large.jsonl").write_text("".join(lines[:1200]))
    for number in range(12):
        (folder / f"small{number:02}.jsonl").write_text("".join(lines[1200 + number :: 12]))
    return replace(served, sources=folder, shard_size="256KiB")


@pytest.fixture(scope="module")
def undisturbed(mixed, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    return undisturbed_by(mixed, output, **OPTIONS)


def test_killed_in_a_span_and_in_a_joined_part(mixed, shardmill, undisturbed, tmp_path) -> None:
    output = tmp_path / "out"
    parts = manifest_of(undisturbed).parts
    assert sum(part.span is not None for part in parts) >= 3
    assert sum(part.files > 1 for part in parts) >= 1
    for awaited in (1, len(parts) - 1):  # among the spans, which come first; in joined files
        run = mixed.start(*mixed.shard_arguments(output, **OPTIONS))
        wait_for(
            lambda run=run, awaited=awaited: (
                workers_of(run.pid) and len(list(output.glob("parts/*"))) >= awaited
            ),
            run,
        )
        time.sleep(0.05)
        kill_group(run)
    recorded = changed_at(output)
    assert recorded
    succeeded(mixed.shard(output, **OPTIONS))
    assert_same_dataset(undisturbed, output)
    now = changed_at(output)
    assert recorded.items() <= now.items()
    succeeded(shardmill("verify", output, "--deep"))


def test_spans_and_small_files_from_s3(
    mixed,
    shardmill,
    undisturbed,
    s3,
    bucket,
    tmp_path,
) -> None:
    upload(s3, bucket, "raw", mixed.sources)
    remote = mixed.where(**aws_environment(s3.url))
    output = tmp_path / "out"
    options = {**OPTIONS, "engine": "auto", "workers": 1, "sources": f"s3://{bucket}/raw"}
    succeeded(remote.shard(output, **options))
    shards = [
        {str(f.relative_to(root)): f.read_bytes() for f in root.rglob("*.mds*")}
        for root in (undisturbed, output)
    ]
    assert shards[0] == shards[1] != {}
    report = json.loads(next((output / "runs").glob("*.json")).read_text())
    size = sum(file.stat().st_size for file in mixed.sources.iterdir())
    spans = sum(part.span is not None for part in manifest_of(output).parts)
    fetched = sum(part["fetched_bytes"] for part in report["parts"])
    assert size <= fetched <= size + spans * 2 * 2**16  # the rest is read after each span's end
    assert not (tmp_path / ".out.scratch").exists()
    succeeded(shardmill("verify", output, "--deep"))
