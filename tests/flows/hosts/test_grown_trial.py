"""A user's whole way: lines with copies, shuffled and deduplicated on two hosts through S3.

One of them dies in the merge; the result is verified, extended by a file, killed in that too,
and training goes on over it.
"""

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from streaming_ext.format.reading import read_manifest
from streaming_ext.store import open_storage
from tasks.core.check.verify import verify
from tasks.core.synthetic import make_documents
from tests.command_line import CommandLine, assert_same_dataset, output_of, succeeded, wait_for
from tests.servers.namespaces import Network
from tests.servers.prefect.networked import networked_cluster
from tests.servers.prefect.worker import ON_HOSTS, Cluster
from tests.servers.storage.swift import SwiftServer, aws_environment, download_all
from tests.streaming_ext.order.test_grown import all_rows, opened, rows_of, steps

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
DOCUMENTS = 400  # a file
HOSTS = ("--executor", ON_HOSTS, "--partitions", 3, "--workers", 1)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Four files, and one that came later; three of ten documents stand elsewhere too."""
    folder = tmp_path / "lines"
    for part in ("first", "later"):
        (folder / part).mkdir(parents=True)
    common = list(make_documents(60, seed=1))
    for number in range(5):
        texts = list(make_documents(DOCUMENTS, seed=100 + number))
        texts[::3] = [common[place % 60] for place in range(len(texts[::3]))]
        rows = [json.dumps({"text": text, "meta": {"language": "en"}}) for text in texts]
        file = folder / ("later/new.jsonl" if number == 4 else f"first/{number}.jsonl")
        file.write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def hosts(
    wire: Network, api_url: str, s3: SwiftServer, served: CommandLine, tmp_path: Path
) -> Iterator[Cluster]:
    env = {**served.env, "SHARDMILL_SILENCE": "8"}
    with networked_cluster(wire, api_url, s3, env, tmp_path) as made:
        for name in ("one", "two"):
            made.start(name, prefix=wire.add(name))
        yield made


def in_the_merge(hosts: Cluster, run: "subprocess.Popen[str]", url: str, parts: int) -> str:
    """Have the work of a run stand still when it has recorded further parts; one of its hosts."""
    storage = open_storage(url)
    wait_for(lambda: len(storage.list("parts")) > parts or run.poll() is not None)
    assert run.poll() is None, output_of(run, seconds=60)
    return hosts.frozen()[0]


def test_from_lines_to_training(
    hosts: Cluster,
    wire: Network,
    served: CommandLine,
    s3: SwiftServer,
    bucket: str,
    lines: Path,
    tmp_path: Path,
) -> None:
    command = replace(served, sources=lines / "first", shard_size="8KiB")
    away = command.where(**aws_environment(s3.url), SHARDMILL_SILENCE="8")
    options = {"shuffle": "documents", "shuffle_seed": 7, "deduplicate": "exact"}
    url = f"s3://{bucket}/out"
    twin = tmp_path / "twin"
    succeeded(command.shard(twin, **options))

    run = away.start(*away.shard_arguments(url, engine="reference", **options), *HOSTS[:4])
    hosts.kill(in_the_merge(hosts, run, url, 0))
    assert "manifest.json" not in open_storage(url).list()
    hosts.start("late", prefix=wire.add("late"))
    hosts.thaw()
    stdout, stderr = output_of(run, seconds=300)
    assert run.returncode == 0, stdout + stderr
    before = download_all(s3.url, bucket, "out", tmp_path / "before")
    assert_same_dataset(twin, before)
    checked = verify(open_storage(url), deep=True)
    assert checked.findings == ()
    manifest = read_manifest(open_storage(url))
    assert manifest.duplicate_documents > 0.25 * 4 * DOCUMENTS
    first, state = steps(opened(before), len(opened(before)) // 3)

    # extended by a file; whoever does that dies in its gather
    words = ("extend", url, lines / "later", "--engine", "reference", *HOSTS)
    run = away.start(*words)
    in_the_merge(hosts, run, url, len(manifest.parts))
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    hosts.thaw()
    assert read_manifest(open_storage(url)) == manifest
    assert verify(open_storage(url)).findings == ()
    succeeded(away.run(*words))
    succeeded(command.run("extend", twin, lines / "later", "--workers", 2))
    after = download_all(s3.url, bucket, "out", tmp_path / "after")
    assert_same_dataset(twin, after)
    assert verify(open_storage(url), deep=True).findings == ()
    for words in (("inspect", url), ("inspect", url, "--generation", _parent(url)[:12])):
        succeeded(away.run(*words))

    loader = opened(after)
    loader.load_state_dict(state, extend_state=True)
    rest = Counter(row for batch in loader for row in rows_of(batch))
    assert first + rest == all_rows(after)
    assert all_rows(before) < all_rows(after)


def _parent(url: str) -> str:
    return read_manifest(open_storage(url)).generations[-1].manifest.xxh128
