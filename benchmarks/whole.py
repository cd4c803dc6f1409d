"""Copies beside `cp` and the bare S3 client, merges beside Megatron's merge_datasets.py.

    python -m benchmarks.whole [--megabytes 1500] [--times 30]

Our seconds of a copy count from the first part to the published manifest, as the report of a run
tells them; `cp` is followed by `sync`, for a copy of ours is on disk when it ends. A merge is timed
as a command, start-up with it, on both sides: of both datasets, named so many times (`--times`).
`--megatron` names a Python that has megatron-core (default: that of `make interop`); where there
is none, that row is left out. The S3 server is Swift on this machine: it takes most of the time, so
what counts is the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.make_corpus import make_corpus
from tests.servers.swift import aws_environment, make_bucket, s3_client, swift_server

_AT_ONCE = 4
_INTEROP = common.ROOT / ".venv/interop/bin/python"
# Ours, theirs, and how many times as fast ours should be at least.
_PAIRS = (
    ("copy", "cp", None),
    ("copy to S3", "boto3 to S3", 0.9),
    ("copy from S3", "boto3 from S3", 0.9),
    ("merge, the command", "Megatron's merge, the command", 5.0),
)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=1500, help="text of both corpora")
    parser.add_argument("--files", type=int, default=4, help="of each corpus")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=30, help="each dataset of a merge")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--megatron",
        type=Path,
        default=_INTEROP if _INTEROP.exists() else None,
        help="a Python that has megatron-core",
    )
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--scratch", type=Path, default=common.CACHE / "scratch")
    parser.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    args = parser.parse_args()
    args.tokenizer = args.tokenizer or common.default_tokenizer()
    common.save(args.result, **measure(args))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All contenders in alternating rounds; returns seconds."""
    datasets = [_dataset(args, number) for number in (0, 1)]
    size = sum(_bytes(dataset) for dataset in datasets)
    output = args.scratch / "whole-output"
    contenders: dict[str, Callable[[], float]] = {
        "copy": partial(_ours, ["copy", datasets[0], output], output, args.workers),
        "cp": partial(_cp, datasets[0], output),
    }
    seconds = _merges(args, datasets, output)
    with tempfile.TemporaryDirectory() as folder, swift_server(Path(folder) / "swift") as server:
        os.environ.update(aws_environment(server.url))
        bucket = make_bucket(server.url)
        contenders |= {
            "boto3 to S3": partial(_put, server.url, bucket, datasets[0]),
            "copy to S3": partial(_to_s3, datasets[0], bucket, args.workers),
            "boto3 from S3": partial(_get, server.url, bucket, output),
            "copy from S3": partial(_from_s3, bucket, output, args.workers),
        }
        seconds |= common.rounds(contenders, args.rounds)
    shutil.rmtree(output, ignore_errors=True)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    rows = [
        (ours, f"{middle[ours]:.2f}", theirs, f"{middle[theirs]:.2f}",
         f"{middle[theirs] / middle[ours]:.2f}", "" if bound is None else f"at least {bound:g}")
        for ours, theirs, bound in _PAIRS
        if theirs in middle
    ]  # fmt: skip
    print(f"{size / 1e6:.0f} MB in both datasets, {_bytes(datasets[0]) / 1e6:.0f} MB in the first")
    print(common.table(("ours", "s", "theirs", "s", "times as fast", "bound"), rows))
    return {"seconds": seconds, "bytes": size, "workers": args.workers}


def _merges(args: argparse.Namespace, datasets: list[Path], output: Path) -> dict[str, list[float]]:
    """Seconds of both commands, start-up with them, in one round: theirs writes many bytes."""
    shutil.rmtree(output, ignore_errors=True)
    words = [*datasets * args.times, "--output", output, "--repeats"]
    ours = common.run([sys.executable, "-P", "-m", "flows.cli", "merge", *words])
    seconds = {"merge, the command": [ours.seconds]}
    if args.megatron is not None:
        sets = [_exported(args, dataset, number) for number, dataset in enumerate(datasets)]
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        script = common.ROOT / "benchmarks/peers/megatron_merge.py"
        given = [args.megatron, script, *sets * args.times, "--output", output / "merged"]
        seconds["Megatron's merge, the command"] = [common.run(given).seconds]
        written = _bytes(output)
        print(f"Megatron's merge wrote {written / 1e9:.1f} GB", file=sys.stderr)
    return seconds


def _dataset(args: argparse.Namespace, number: int) -> Path:
    dataset: Path = args.scratch / f"whole-dataset-{number}-{args.megabytes:g}"
    if not (dataset / "manifest.json").exists():
        each = args.megabytes / 2 / args.files
        corpus = args.scratch / f"whole-corpus-{number}"
        files = make_corpus(corpus, files=args.files, megabytes=each, share=0.005)
        options = ("--compression", "none")  # more bytes of as much text
        common.shard(files, dataset, args.tokenizer, *options, workers=args.workers)
    return dataset


def _bytes(dataset: Path) -> int:
    return sum(file.stat().st_size for file in _files(dataset))


def _files(dataset: Path) -> list[Path]:
    """Those that a copy holds."""
    return [
        file
        for file in dataset.rglob("*")
        if file.is_file() and file.relative_to(dataset).parts[0] not in {"runs", ".incoming"}
    ]


def _run(words: list[Any], workers: int) -> float:
    command = [sys.executable, "-P", "-m", "flows.cli", *map(str, words)]
    done = common.run([*command, "--workers", str(workers), "--json"])
    told = json.loads(done.output[done.output.index("{") :].rsplit("}", 1)[0] + "}")
    return float(told["report"]["seconds"])


def _ours(words: list[Any], output: Path, workers: int) -> float:
    shutil.rmtree(output, ignore_errors=True)
    return _run(words, workers)


def _cp(dataset: Path, output: Path) -> float:
    shutil.rmtree(output, ignore_errors=True)
    began = time.monotonic()
    subprocess.run(["cp", "-r", dataset, output], check=True)
    subprocess.run(["sync", "-f", output], check=True)
    return time.monotonic() - began


def _exported(args: argparse.Namespace, dataset: Path, number: int) -> Path:
    output: Path = args.scratch / f"whole-megatron-{number}-{args.megabytes:g}"
    if not (output / "export.json").exists():
        command = [sys.executable, "-P", "-m", "flows.cli", "export", "megatron"]
        common.run([*command, dataset, "--output", output])
    return output / "train/text_document"


def _put(url: str, bucket: str, dataset: Path) -> float:
    client = s3_client(url)

    def put(file: Path) -> None:
        key = f"bare/{file.relative_to(dataset).as_posix()}"
        client.put_object(Bucket=bucket, Key=key, Body=file.read_bytes())

    files = _files(dataset)
    began = time.monotonic()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(put, files))
    seconds = time.monotonic() - began
    client.close()
    return seconds


def _get(url: str, bucket: str, output: Path) -> float:
    shutil.rmtree(output, ignore_errors=True)
    client = s3_client(url)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="bare/")
    keys = [entry["Key"] for page in pages for entry in page["Contents"]]

    def get(key: str) -> None:
        file = output / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(client.get_object(Bucket=bucket, Key=key)["Body"].read())

    began = time.monotonic()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(get, keys))
    subprocess.run(["sync", "-f", output], check=True)
    seconds = time.monotonic() - began
    client.close()
    return seconds


def _to_s3(dataset: Path, bucket: str, workers: int) -> float:
    return _run(["copy", dataset, f"s3://{bucket}/{time.monotonic_ns()}/ours"], workers)


def _from_s3(bucket: str, output: Path, workers: int) -> float:
    shutil.rmtree(output, ignore_errors=True)
    return _run(["copy", f"s3://{bucket}/bare", output], workers)


if __name__ == "__main__":
    main()
