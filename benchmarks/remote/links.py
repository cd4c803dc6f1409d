"""How long CPUs wait on the network: whole runs from S3 to S3 behind links of several speeds.

    SHARDMILL_SHARED=FOLDER python -m benchmarks.remote.links [--megabytes 1000] [--proxy]

Reads `data/parquet/*.parquet` and `data/vocab/r50k_base.tiktoken` of that folder. As root the link
is a shaped veth pair to a network namespace that holds the server (`network.py`); for others, or
with --proxy, a proxy of the tests. Server and run share the machine's CPUs. Waiting is what is left
of the workers' time beside tokenizing, 1 - tokenizing seconds / (workers * seconds): of the whole
run, and from the moment on at which the first file has come. "disk" is without any network.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.remote.network import THERE, inside, link, may_shape
from tests.servers.fault_proxy import Faults, fault_proxy
from tests.servers.storage.swift import (
    SwiftServer,
    aws_environment,
    make_bucket,
    s3_client,
    swift_server,
)

Shape = Callable[[float | None], None]
WORKERS = 1
SPEEDS = {"100 MB/s": 100e6, "1 GB/s": 1e9, "unshaped": None}


def run(sources: str, output: str, scratch: Path) -> str:
    shared = Path(os.environ["SHARDMILL_SHARED"])
    command = [
        sys.executable,
        "-P",
        "-m",
        "flows.cli",
        "shard",
        sources,
        "--output",
        output,
        "--tokenizer",
        str(shared / "data/vocab/r50k_base.tiktoken"),
        "--pattern",
        "gpt2",
        "--workers",
        str(WORKERS),
        "--scratch",
        str(scratch),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(name: str, report: dict[str, Any]) -> None:
    parts = report["parts"]
    tokenizing = sum(part["tokenize_seconds"] for part in parts)
    seconds = report["seconds"]
    first = min(part["fetch_seconds"] for part in parts)  # until then no worker can begin
    rate = report["text_bytes"] / 1e6 / seconds
    fetched = sum(part["fetched_bytes"] for part in parts)
    print(
        f"{name:10} {seconds:6.1f} s  {rate:6.1f} MB/s of text"
        f"  waiting {waiting(tokenizing, seconds)}"
        f", from the first file on ({first:.1f} s) {waiting(tokenizing, seconds - first)}"
        f"  fetched {fetched / 1e6:6.0f} MB  written {report['shard_bytes'] / 1e6:6.0f} MB",
        flush=True,
    )


def waiting(tokenizing: float, seconds: float) -> str:
    return f"{1 - tokenizing / (WORKERS * seconds):5.1%}"


@contextmanager
def server_behind_link(folder: Path, proxied: bool) -> Iterator[tuple[SwiftServer, str, Shape]]:
    """The server, the endpoint through the link, and what sets the link's speed."""
    if proxied:
        with swift_server(folder) as server, fault_proxy(server.port) as proxy:
            yield server, proxy.url, lambda speed: proxy.inflict(Faults(bytes_per_second=speed))
        return
    with link() as made, swift_server(folder, THERE, inside()) as server:

        def shape(speed: float | None) -> None:
            made.shape(speed)
            print(f"a bare socket moves {made.speed(200) / 1e6:.0f} MB/s")

        yield server, server.url, shape


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--proxy", action="store_true")
    arguments = parser.parse_args()
    wanted = arguments.megabytes * 10**6
    files = sorted(Path(os.environ["SHARDMILL_SHARED"], "data/parquet").glob("*.parquet"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "raw").mkdir()
        table = pa.concat_tables([pq.read_table(file, columns=["text"]) for file in files] * 2)
        size, number = 0, 0
        while size < wanted:
            path = folder / f"raw/{number:03}.parquet"
            pq.write_table(table, path, compression="zstd", row_group_size=1000)
            size, number = size + path.stat().st_size, number + 1
        run(str(folder / "raw"), str(folder / "out"), folder / "scratch")
        (report,) = (folder / "out/runs").glob("*.json")
        print(f"{number} files of {size / 1e6:.0f} MB together")
        shown("disk", json.loads(report.read_text()))
        with server_behind_link(folder / "swift", arguments.proxy or not may_shape()) as (
            server,
            endpoint,
            shape,
        ):
            os.environ.update(aws_environment(endpoint))
            bucket = make_bucket(server.url)
            client = s3_client(server.url)
            for file in sorted((folder / "raw").iterdir()):
                client.put_object(Bucket=bucket, Key=f"raw/{file.name}", Body=file.read_bytes())
            for label, speed in SPEEDS.items():
                shape(speed)
                output = label.split()[0]
                run(f"s3://{bucket}/raw", f"s3://{bucket}/{output}", folder / "scratch")
                entries = client.list_objects_v2(Bucket=bucket, Prefix=f"{output}/runs/")
                (key,) = (e["Key"] for e in entries["Contents"] if e["Key"].endswith(".json"))
                shown(label, json.loads(client.get_object(Bucket=bucket, Key=key)["Body"].read()))
            client.close()


if __name__ == "__main__":
    main()
