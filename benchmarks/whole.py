"""Copies and requests compared with `cp` and the bare S3 client, merges compared with Megatron's.

The seconds of our copy count from the first part to the published manifest, as in the report of a
run. `cp` is followed by `sync`, as our copy is on disk when it ends. The bare client is boto3 with
its own defaults: `upload_file` and `download_file` for each file, four at a time. Requests are made
by our storage, or fetch a source file to disk.

A merge is timed as a command with its start-up, on both sides. It merges two datasets, each named
several times (`--times`, one row each). Megatron's `merge_datasets.py` writes all bytes again, ours
gives each file a second name, so the ratio grows with the datasets. The S3 server is Swift on this
machine; it takes most of the time, so only ratios are meaningful.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.corpus import make_corpus
from streaming_ext.store import uploads
from streaming_ext.store.objects import ObjectStorage
from streaming_ext.text.fetch import fetch
from streaming_ext.text.listing import list_sources
from tests.servers.storage.swift import aws_environment, make_bucket, s3_client, swift_server

_AT_ONCE = 4
_SHARD = 32 * 2**20
_OUTPUT = common.SCRATCH / "whole-output"


def main() -> None:
    """Measure and print the tables."""
    parser = common.parser(__doc__, megabytes=1040.0, rounds=3, requests=16)
    parser.add_argument("--times", type=int, nargs="+", default=[5, 14], help="each dataset")
    kinds = ("copies", "requests", "merges", "megatron")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    files = make_corpus(args.megabytes, 8)
    datasets = [common.SCRATCH / f"whole-{number}" for number in (0, 1)]
    for number, dataset in enumerate(datasets):
        common.shard(files[number::2], dataset, "--compression", "none")
    if "merges" in args.only:
        peers = exported(datasets) if "megatron" in args.only else []
        found["merges"] = [merges(datasets, peers, times) for times in args.times]
        print(common.table([*found["merges"][0]], [row.values() for row in found["merges"]]))
    with tempfile.TemporaryDirectory() as name, swift_server(Path(name) / "swift") as server:
        os.environ.update(aws_environment(server.url))
        client, bucket = s3_client(server.url), make_bucket(server.url)
        if "copies" in args.only:
            both = common.fresh(common.SCRATCH / "whole-both")
            command("merge", *datasets, "--output", both, "--repeats")
            found["copies"] = common.rounds(copies(both, client, bucket), args.rounds)
            print(f"seconds, {sum(path.stat().st_size for path in in_copy(both)) / 1e6:.0f} MB")
            middle = common.medians(found["copies"])
            print(common.table(("copy", "s"), [(what, f"{s:.2f}") for what, s in middle.items()]))
        if "requests" in args.only:
            work = requests(Path(name), client, bucket, args.requests)
            found["requests"] = common.rounds(work, args.rounds)
            size = args.requests * _SHARD / 1e6
            rates = {what: f"{size / min(all_):.0f}" for what, all_ in found["requests"].items()}
            print(common.table(("request", "MB/s"), rates.items()))
    common.fresh(_OUTPUT)
    common.save(args.result, **found)


def command(*words: object) -> tuple[common.Measured, float]:
    """Run a Shardmill command; return the measurement, and the seconds that it reports."""
    done = common.shardmill(*words, "--json")
    told = json.loads(done.output[done.output.index("{") :].rsplit("}", 1)[0] + "}")
    return done, float(told["report"]["seconds"])


def exported(datasets: list[Path]) -> list[Path]:
    """Export datasets for Megatron; return the prefixes."""
    outputs = [dataset.with_suffix(".megatron") for dataset in datasets]
    for dataset, output in zip(datasets, outputs, strict=True):
        common.shardmill("export", "megatron", dataset, "--output", common.fresh(output))
    return [output / "train/text_document" for output in outputs]


def merges(datasets: list[Path], peers: list[Path], times: int) -> dict[str, float]:
    """Measure the seconds of both commands once, as Megatron's writes many bytes."""
    size = times * sum(path.stat().st_size for dataset in datasets for path in in_copy(dataset))
    ours, told = command("merge", *datasets * times, "--output", common.fresh(_OUTPUT), "--repeats")
    row = {"GB": size / 1e9, "ours, s": ours.seconds, "of them start": ours.seconds - told}
    if peers:
        words = ("megatron_merge", *peers * times, "--output", common.fresh(_OUTPUT))
        row["Megatron's, s"] = common.peer(*words, env="megatron-core")[1].seconds
    return {name: round(value, 1) for name, value in row.items()}


def in_copy(dataset: Path) -> list[Path]:
    """Return the files that a copy holds."""
    left_out = {"runs", ".incoming"}
    files = (path for path in dataset.rglob("*") if path.is_file())
    return [path for path in files if path.relative_to(dataset).parts[0] not in left_out]


def at_once(work: Callable[[Any], object], items: Iterable[Any]) -> None:
    """Do something for each item, in threads."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(work, items))


def copies(dataset: Path, client: Any, bucket: str) -> dict[str, Callable[[], float]]:
    """Return functions that copy to disk, to S3 and back, and return their seconds."""

    def ours(source: object, target: object) -> float:
        return command("copy", source, target)[1]

    def put(file: Path) -> None:
        client.upload_file(str(file), bucket, f"bare/{file.relative_to(dataset).as_posix()}")

    def get(key: str) -> None:
        file = _OUTPUT / key
        file.parent.mkdir(parents=True, exist_ok=True)
        client.download_file(bucket, key, str(file))

    def download() -> None:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="bare/")
        at_once(get, [entry["Key"] for page in pages for entry in page["Contents"]])
        subprocess.run(["sync", "-f", _OUTPUT], check=True)

    def cp() -> None:
        subprocess.run(["cp", "-r", dataset, _OUTPUT], check=True)
        subprocess.run(["sync", "-f", _OUTPUT], check=True)

    return {
        "shardmill": lambda: ours(dataset, common.fresh(_OUTPUT)),
        "cp": partial(seconds, cp),
        "boto3 to S3": partial(seconds, lambda: at_once(put, in_copy(dataset))),
        "shardmill to S3": lambda: ours(dataset, f"s3://{bucket}/{time.monotonic_ns()}/ours"),
        "boto3 from S3": partial(seconds, download),
        "shardmill from S3": lambda: ours(f"s3://{bucket}/bare", common.fresh(_OUTPUT)),
    }


def seconds(work: Callable[[], object]) -> float:
    """Measure the seconds of some work, after removing its output."""
    common.fresh(_OUTPUT)
    began = time.monotonic()
    work()
    return time.monotonic() - began


def requests(folder: Path, client: Any, bucket: str, count: int) -> dict[str, Callable[[], float]]:
    """Return functions that make requests, and return their seconds."""
    storage = ObjectStorage(f"s3://{bucket}/ours")
    shard, data = folder / "shard", os.urandom(_SHARD)
    shard.write_bytes(data)
    client.put_object(Bucket=bucket, Key="one.parquet", Body=data * count)
    (source,) = list_sources([f"s3://{bucket}/one.parquet"])

    def put(number: int) -> None:
        client.put_object(Bucket=bucket, Key=f"{number}", Body=data)

    def get(number: int) -> None:
        client.get_object(Bucket=bucket, Key=f"{number}")["Body"].read()

    def our_put() -> None:
        with uploads(storage) as send:
            for number in range(count):
                send(str(number), shard)

    def our_file() -> None:
        path, _ = fetch(source, folder / "scratch")
        path.unlink()

    each = range(count)
    work: dict[str, Callable[[], object]] = {
        "put, boto3": lambda: at_once(put, each),
        "put, shardmill": our_put,
        "get, boto3": lambda: at_once(get, each),
        "get, shardmill": lambda: at_once(lambda number: storage.read(str(number)), each),
        "file, boto3": lambda: client.download_file(bucket, "one.parquet", str(folder / "one")),
        "file, shardmill": our_file,
    }
    return {name: partial(seconds, each_work) for name, each_work in work.items()}


if __name__ == "__main__":
    main()
