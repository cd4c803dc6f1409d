"""Whole runs on one, two and four hosts whose link is the bound: how near to linear they are.

    python -m benchmarks.hosts [--megabytes 64] [--link 1] [--hosts 1 2 4]

Hosts are network namespaces of this machine (root only), each with a link of its own whose speed
`tc` bounds, so that a machine of few cores can stand for many: what a host waits for is its own.
Sources and output are in S3, partitions are eight in all runs. Seconds are those of the report:
from the plan to the manifest, with the start of every partition's process.
"""

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common import machine
from tasks.core.synthetic import make_documents, train_vocabulary, write_parquet_files
from tests.conftest import clean_environment
from tests.servers.namespaces import network
from tests.servers.prefect.networked import networked_cluster
from tests.servers.prefect.server import prefect_server
from tests.servers.prefect.worker import ON_HOSTS, PARENTS
from tests.servers.storage.swift import make_bucket, s3_client, swift_server

FILES = 32
PARTITIONS = 8
BYTES_A_DOCUMENT = 1500  # of a made-up file, packed


def upload(url: str, bucket: str, folder: Path) -> int:
    """Put the source files into a bucket; returns their bytes."""
    client = s3_client(url)
    total = 0
    for file in sorted(folder.glob("*.parquet")):
        data = file.read_bytes()
        client.put_object(Bucket=bucket, Key=f"raw/{file.name}", Body=data)
        total += len(data)
    client.close()
    return total


def report_of(url: str, bucket: str) -> dict[str, Any]:
    """What the run told of itself."""
    client = s3_client(url)
    listed = client.list_objects_v2(Bucket=bucket, Prefix="out/runs/")["Contents"]
    (key,) = [entry["Key"] for entry in listed if entry["Key"].endswith(".json")]
    value = json.loads(client.get_object(Bucket=bucket, Key=key)["Body"].read())
    client.close()
    return dict(value)


def measure(hosts: int, folder: Path, sources: Path, vocabulary: Path, link: float) -> float:
    """Seconds of a run on so many hosts, `link` in MB/s."""
    (folder / "prefect").mkdir(parents=True)
    with ExitStack() as stack:
        wire = stack.enter_context(network())
        s3 = stack.enter_context(swift_server(folder / "swift"))
        api = stack.enter_context(prefect_server(folder / "prefect"))
        bucket = make_bucket(s3.url)
        size = upload(s3.url, bucket, sources)
        env = clean_environment(folder / "home")
        made = stack.enter_context(networked_cluster(wire, api, s3, env, folder))
        made.start("planner", pool=PARENTS, prefix=wire.add("planner"))
        for number in range(hosts):
            name = f"h{number}"
            made.start(name, prefix=wire.add(name))
            wire.limit(name, link)
        config = {
            "sources": [f"s3://{bucket}/raw/*.parquet"],
            "output": f"s3://{bucket}/out",
            "tokenizer": str(vocabulary),
            "pattern": "gpt2",
            "workers": 1,
            "executor": ON_HOSTS,
            "partitions": PARTITIONS,
        }
        run = made.run("shard-dataset/demo", {"config": config})
        state = made.wait(run, seconds=900)
        assert state["type"] == "COMPLETED", state
        seconds = float(report_of(s3.url, bucket)["seconds"])
    print(f"{hosts} hosts: {seconds:6.1f} s  {size / 1e6 / seconds:5.2f} MB/s of sources")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=64)
    parser.add_argument("--link", type=float, default=1.0, help="MB/s towards each host")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources, vocabulary = folder / "sources", folder / "small.tiktoken"
        sources.mkdir()
        documents = int(options.megabytes * 1e6 / FILES / BYTES_A_DOCUMENT)
        write_parquet_files(sources, FILES, documents, seed=0)
        train_vocabulary(make_documents(300, seed=1), 1024, vocabulary)
        seconds = {
            hosts: measure(hosts, folder / str(hosts), sources, vocabulary, options.link)
            for hosts in options.hosts
        }
    first = options.hosts[0]
    for hosts, taken in seconds.items():
        gain = seconds[first] / taken * first
        print(f"{hosts} hosts: {gain:.2f} times one host, {gain / hosts:.0%} of linear")


if __name__ == "__main__":
    main()
