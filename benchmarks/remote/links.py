"""How long CPUs wait on the network: whole runs from S3 to S3 behind links of several speeds.

    SHARDMILL_SHARED=FOLDER python benchmarks/remote/links.py [--megabytes 300]

Reads `data/parquet/*.parquet` and `data/vocab/r50k_base.tiktoken` of that folder. Server, proxy
and run share the machine. Waiting is what is left of the workers' time beside tokenizing:
1 - tokenizing seconds / (workers * seconds). The line "disk" is the same without any network.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.servers.fault_proxy import Faults, fault_proxy
from tests.servers.swift import aws_environment, make_bucket, s3_client, swift_server

WORKERS = 1
SPEEDS = {"100 MB/s": 100e6, "1 GB/s": 1e9, "unshaped": None}


def run(sources: str, output: str, scratch: Path) -> str:
    shared = Path(os.environ["SHARDMILL_SHARED"])
    command = [
        sys.executable, "-m", "flows.cli", "shard", sources, "--output", output,
        "--tokenizer", str(shared / "data/vocab/r50k_base.tiktoken"), "--pattern", "gpt2",
        "--workers", str(WORKERS), "--scratch", str(scratch),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(name: str, report: dict[str, Any], up: float = 0, down: float = 0) -> None:
    tokenizing = sum(part["tokenize_seconds"] for part in report["parts"])
    wait = 1 - tokenizing / (WORKERS * report["seconds"])
    rate = report["text_bytes"] / 1e6 / report["seconds"]
    print(
        f"{name:10} {report['seconds']:6.1f} s  {rate:6.1f} MB/s of text  waiting {wait:5.1%}"
        f"  up {up / 1e6:6.0f} MB  down {down / 1e6:6.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=300)
    wanted = parser.parse_args().megabytes * 10**6
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
        with swift_server(folder / "swift") as server, fault_proxy(server.port) as proxy:
            os.environ.update(aws_environment(proxy.url))
            bucket = make_bucket(server.url)
            client = s3_client(server.url)
            for file in sorted((folder / "raw").iterdir()):
                client.put_object(Bucket=bucket, Key=f"raw/{file.name}", Body=file.read_bytes())
            for label, speed in SPEEDS.items():
                proxy.inflict(Faults(bytes_per_second=speed))
                up, down = proxy.bytes_up, proxy.bytes_down
                output = label.split()[0]
                run(f"s3://{bucket}/raw", f"s3://{bucket}/{output}", folder / "scratch")
                entries = client.list_objects_v2(Bucket=bucket, Prefix=f"{output}/runs/")
                (key,) = (e["Key"] for e in entries["Contents"] if e["Key"].endswith(".json"))
                report = json.loads(client.get_object(Bucket=bucket, Key=key)["Body"].read())
                shown(label, report, proxy.bytes_up - up, proxy.bytes_down - down)


if __name__ == "__main__":
    main()
