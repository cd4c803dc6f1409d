"""Spans and joined parts: one large file on two workers, eight files, many small ones.

Texts are those of the made-up corpus; each figure is the median of rounds that alternate.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from functools import partial
from pathlib import Path

from benchmarks import common
from benchmarks.make_corpus import make_corpus
from tasks.core.estimate.cost import makespan


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=2000, help="text of the large file")
    parser.add_argument("--part-size", default="64MiB")
    parser.add_argument("--files", type=int, default=100_000, help="small ones; 0: none")
    parser.add_argument("--kilobytes", type=float, default=5, help="text of a small file")
    parser.add_argument("--min-part-size", default="64MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["large", "eight", "small"])
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--scratch", type=Path, default=common.CACHE / "scratch")
    parser.add_argument("--result", type=Path, help="file to keep the result in, as JSON")
    args = parser.parse_args()
    args.tokenizer = args.tokenizer or common.default_tokenizer()
    results = {}
    for name, measure in (("large", large), ("eight", eight), ("small", small)):
        if args.only in {None, name}:
            results[name] = measure(args)
    common.save(args.result, **results)


def run(args: argparse.Namespace, files: list[Path], *options: str, workers: int) -> common.Sharded:
    """One run over these files."""
    output = args.scratch / "spans-output"
    return common.shard(files, output, args.tokenizer, *options, workers=workers)


def large(args: argparse.Namespace) -> dict[str, list[float]]:
    """One file cut into parts, on one worker and on two."""
    (parquet,) = make_corpus(args.scratch / "spans-large", files=1, megabytes=args.megabytes)
    lines = common.as_lines(parquet, args.scratch / "spans-large.jsonl")
    bounds: dict[Path, str] = {}

    def seconds(file: Path, workers: int) -> float:
        sharded = run(args, [file], "--part-size", args.part_size, workers=workers)
        if workers == 1:
            bounds[file] = bound(sharded)
        return sharded.seconds

    contenders = {
        f"{file.suffix}, {workers} worker{'s' if workers > 1 else ''}": (
            partial(seconds, file, workers)
        )
        for file in (parquet, lines)
        for workers in (1, 2)
    }
    values = common.rounds(contenders, args.rounds)
    medians = {name: statistics.median(seconds) for name, seconds in values.items()}
    rows = []
    for file in (parquet, lines):
        one, two = medians[f"{file.suffix}, 1 worker"], medians[f"{file.suffix}, 2 workers"]
        rows.append((file.suffix, f"{one:.1f}", f"{two:.1f}", f"{one / two:.2f}", bounds[file]))
    header = ("one file", "1 worker, s", "2 workers, s", "times", "at most, by its parts")
    print(common.table(header, rows))
    return values


def bound(sharded: common.Sharded) -> str:
    """How much faster two workers can do the parts that one has done: the last ends the run."""
    parts = sorted(sharded.record["parts"], key=lambda part: part["part"])
    seconds = [part["tokenize_seconds"] + part["write_seconds"] for part in parts]
    return f"{sum(seconds) / makespan(seconds, 2):.2f} ({len(parts)} parts)"


def eight(args: argparse.Namespace) -> dict[str, list[float]]:
    """Eight files whole, and cut in two each."""
    folder = args.scratch / "spans-eight"
    files = make_corpus(folder, files=8, megabytes=args.megabytes / 8)
    half = str(max(file.stat().st_size for file in files) * 2 // 3)
    values = common.rounds(
        {
            "whole": lambda: run(args, files, workers=2).seconds,
            "in two spans": lambda: run(args, files, "--part-size", half, workers=2).seconds,
        },
        args.rounds,
    )
    rows = [(name, f"{statistics.median(seconds):.1f}") for name, seconds in values.items()]
    print(common.table(("eight files", "seconds"), rows))
    return values


def small(args: argparse.Namespace) -> dict[str, list[float]]:
    """Many small files in few parts, against the same text in one file."""
    if not args.files:
        return {}
    total = args.files * args.kilobytes / 1000
    (parquet,) = make_corpus(args.scratch / "spans-one", files=1, megabytes=total)
    one = common.as_lines(parquet, args.scratch / "spans-one.jsonl")
    folder = args.scratch / f"spans-{args.files}"
    count = split_lines(one, folder, args.files)
    joined = ("--min-part-size", args.min_part_size)
    values = common.rounds(
        {
            "one file": lambda: run(args, [one], "--part-size", "64MiB", workers=2).seconds,
            "small files": lambda: run(args, [folder], *joined, workers=2).seconds,
        },
        args.rounds,
    )
    whole = run(args, [folder], *joined, workers=2)
    parts = json.loads((args.scratch / "spans-output/manifest.json").read_text())["parts"]
    medians = {name: statistics.median(seconds) for name, seconds in values.items()}
    extra = (medians["small files"] - medians["one file"]) / count * 1000
    start = whole.measured.seconds - whole.seconds
    rows = [(name, f"{seconds:.1f}") for name, seconds in medians.items()]
    print(common.table((f"{total:.0f} MB of text", "seconds"), rows))
    print(
        f"\n{count:,} files in {len(parts)} parts: {extra:.3f} ms a file on top of its bytes; "
        f"{start:.1f} s before the first part, start-up of Prefect included."
    )
    return values


def split_lines(lines: Path, folder: Path, files: int) -> int:
    """About so many files of whole lines; returns how many they are."""
    size = lines.stat().st_size
    mark = folder.with_suffix(".made")
    if not mark.exists() or mark.read_text() != f"{size}":
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        each, number, held = size / files, 0, bytearray()
        with lines.open("rb") as file:
            for line in file:
                held += line
                if len(held) >= each:
                    (folder / f"{number:07}.jsonl").write_bytes(held)
                    number, held = number + 1, bytearray()
        if held:
            (folder / f"{number:07}.jsonl").write_bytes(held)
        mark.write_text(f"{size}")
    return sum(1 for _ in folder.iterdir())


if __name__ == "__main__":
    main()
