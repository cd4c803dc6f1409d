"""Copies beside `cp` and the bare S3 client, merges beside Megatron's merge_datasets.py.

    python -m benchmarks.whole [--megabytes 1500] [--times 5 30 120] [--only copies merges]

Our seconds of a copy count from the first part to the published manifest, as the report of a run
tells them; `cp` is followed by `sync`, for a copy of ours is on disk when it ends. The bare client
is boto3 with its own defaults: `upload_file` and `download_file` of each file, of four at once.

A merge is timed as a command, start-up with it, on both sides: of both datasets, named so many
times (`--times`, each a row). What a command takes beside its work, as it tells that itself, stands
apart. Megatron's writes all bytes again, ours gives each file a second name, so the ratio grows
with the datasets. `--megatron` names a Python that has megatron-core (default: that of
`make interop`); where there is none, its rows are left out. The S3 server is Swift on this machine:
it takes most of the time, so what counts is the ratio.
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
from tests.servers.storage.swift import aws_environment, make_bucket, s3_client, swift_server

_AT_ONCE = 4
_INTEROP = common.ROOT / ".venv/interop/bin/python"
# Ours, theirs, and how many times as fast ours should be at least.
_PAIRS = (
    ("copy", "cp", 0.5),
    ("copy to S3", "boto3 to S3", 0.9),
    ("copy from S3", "boto3 from S3", 0.9),
)
_MERGE = 5.0


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=1500, help="text of both corpora")
    parser.add_argument("--files", type=int, default=4, help="of each corpus")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, nargs="+", default=[5, 30, 120], help="each dataset")
    parser.add_argument("--only", nargs="+", choices=("copies", "merges"))
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
    """Both tables; returns seconds."""
    datasets = [_dataset(args, number) for number in (0, 1)]
    output = args.scratch / "whole-output"
    found: dict[str, Any] = {"workers": args.workers}
    if "merges" in (args.only or ["merges"]):
        found["merges"] = _merges(args, datasets, output)
    if "copies" in (args.only or ["copies"]):
        found["copies"] = _copies(args, _both(args, datasets), output)
    shutil.rmtree(output, ignore_errors=True)
    return found


def _copies(args: argparse.Namespace, dataset: Path, output: Path) -> dict[str, list[float]]:
    """All contenders in alternating rounds."""
    with tempfile.TemporaryDirectory() as folder, swift_server(Path(folder) / "swift") as server:
        os.environ.update(aws_environment(server.url))
        bucket = make_bucket(server.url)
        contenders: dict[str, Callable[[], float]] = {
            "copy": partial(_ours, ["copy", dataset, output], output, args.workers),
            "cp": partial(_cp, dataset, output),
            "boto3 to S3": partial(_put, server.url, bucket, dataset),
            "copy to S3": partial(_to_s3, dataset, bucket, args.workers),
            "boto3 from S3": partial(_get, server.url, bucket, output),
            "copy from S3": partial(_from_s3, bucket, output, args.workers),
        }
        seconds = common.rounds(contenders, args.rounds)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    rows = [
        (
            ours,
            f"{middle[ours]:.2f}",
            theirs,
            f"{middle[theirs]:.2f}",
            f"{middle[theirs] / middle[ours]:.2f}",
            f"at least {bound:g}",
        )
        for ours, theirs, bound in _PAIRS
    ]
    print(f"a dataset of {_bytes(dataset) / 1e6:.0f} MB")
    print(common.table(("ours", "s", "theirs", "s", "times as fast", "bound"), rows))
    return seconds


def _merges(args: argparse.Namespace, datasets: list[Path], output: Path) -> list[dict[str, float]]:
    """Seconds of both commands at each size, in one round: theirs writes many bytes."""
    rows: list[dict[str, float]] = []
    for times in args.times:
        shutil.rmtree(output, ignore_errors=True)
        words = ["merge", *datasets * times, "--output", output, "--repeats"]
        done, told = _command(words)
        row = {
            "bytes": float(times * sum(map(_bytes, datasets))),
            "ours": done.seconds,
            "our start": done.seconds - float(told["report"]["seconds"]),
        }
        if args.megatron is not None:
            sets = [_exported(args, dataset, number) for number, dataset in enumerate(datasets)]
            shutil.rmtree(output, ignore_errors=True)
            script = (common.ROOT / "benchmarks/peers.py", "megatron_merge")
            given = [args.megatron, "-P", *script, *sets * times, "--output", output]
            theirs = common.run(given)
            inside = json.loads(theirs.output.splitlines()[-1])["seconds"]
            row |= {"theirs": theirs.seconds, "their start": theirs.seconds - float(inside)}
        rows.append(row)
        print({name: round(value, 2) for name, value in row.items()}, file=sys.stderr)
    columns = ("GB", "ours, s", "of them start", "Megatron's, s", "of them start", "times as fast")
    shown = [
        (
            f"{row['bytes'] / 1e9:.1f}",
            f"{row['ours']:.1f}",
            f"{row['our start']:.1f}",
            *(f"{row[name]:.1f}" for name in ("theirs", "their start") if name in row),
            *([f"{row['theirs'] / row['ours']:.2f}"] if "theirs" in row else []),
        )
        for row in rows
    ]
    print(f"merges, as commands; at least {_MERGE:g} times as fast")
    print(common.table(columns, shown))
    return rows


def _dataset(args: argparse.Namespace, number: int) -> Path:
    dataset: Path = args.scratch / f"whole-dataset-{number}-{args.megabytes:g}"
    if not (dataset / "manifest.json").exists():
        each = args.megabytes / 2 / args.files
        corpus = args.scratch / f"whole-corpus-{number}"
        files = make_corpus(corpus, files=args.files, megabytes=each, share=0.005)
        options = ("--compression", "none")  # more bytes of as much text
        common.shard(files, dataset, args.tokenizer, *options, workers=args.workers)
    return dataset


def _both(args: argparse.Namespace, datasets: list[Path]) -> Path:
    """Both as one: more bytes, beside which what a copy takes at its start and end is less."""
    both: Path = args.scratch / f"whole-both-{args.megabytes:g}"
    if not (both / "manifest.json").exists():
        shutil.rmtree(both, ignore_errors=True)
        _command(["merge", *datasets, "--output", both, "--repeats"])
    return both


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
    _, told = _command([*words, "--workers", workers])
    return float(told["report"]["seconds"])


def _command(words: list[Any]) -> tuple[common.Measured, dict[str, Any]]:
    """A command of ours, and what it tells as JSON."""
    command = [sys.executable, "-P", "-m", "flows.cli", *map(str, words)]
    done = common.run([*command, "--json"])
    told = json.loads(done.output[done.output.index("{") :].rsplit("}", 1)[0] + "}")
    return done, told


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
        client.upload_file(str(file), bucket, key)

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
        client.download_file(bucket, key, str(file))

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
