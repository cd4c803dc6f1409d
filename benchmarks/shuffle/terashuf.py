"""A shuffled run on JSON Lines beside terashuf and an unshuffled run on what terashuf wrote.

A shuffled run does all that an unshuffled one does. So the ratio has a limit, which is printed
beside it: that of a shuffle that takes no time.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import common

_FLAGS = ("-std=c++11", "-O3")  # of its Makefile


def beside_terashuf(args: argparse.Namespace, files: list[Path]) -> dict[str, Any]:
    """Both ways in alternating rounds; prints and returns seconds and memory, in bytes."""
    program = built(args.terashuf, args.scratch)
    folder = args.scratch / "shuffle-lines"
    lines = [common.as_lines(file, folder / f"{file.stem}.jsonl") for file in files]
    shuffled, output = args.scratch / "terashuf.jsonl", args.scratch / "shuffle-output"
    memory: dict[str, list[int]] = {"terashuf": [], "shuffled": [], "unshuffled": []}

    def terashuf() -> float:
        script = f'cat "$@" | TMPDIR={args.scratch} MEMORY={args.terashuf_memory} {program}'
        done = common.run(["sh", "-c", f"{script} >{shuffled}", "sh", *lines], interval=0.05)
        found = [samples for name, samples in done.memory.items() if str(program) in name]
        memory["terashuf"].append(max(size for samples in found for _, size in samples))
        return done.seconds

    def run(kind: str, sources: list[Path], *options: str) -> float:
        done = common.shard(
            sources, output, args.tokenizer, *args.options, *options, workers=args.workers
        )
        memory[kind].append(
            sum(max(size for _, size in samples) for samples in done.measured.worker_memory())
        )
        return done.seconds

    contenders = {
        "terashuf": terashuf,
        "unshuffled": lambda: run("unshuffled", [shuffled], "--part-size", "128MiB"),
        "shuffled": lambda: run("shuffled", lines, "--shuffle", "documents"),
    }
    seconds = common.rounds(contenders, args.rounds)
    shuffled.unlink()
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    both = middle["terashuf"] + middle["unshuffled"]
    memory["both"] = [max(*memory["terashuf"], *memory["unshuffled"])]  # one after the other
    for name, value in {**middle, "both": both}.items():
        words = "terashuf, then unshuffled" if name == "both" else name
        print(f"| {words}, JSON Lines | {value:.2f} s | {max(memory[name]) / 2**20:.0f} MiB |")
    times, limit = both / middle["shuffled"], both / middle["unshuffled"]
    print(f"| terashuf and unshuffled, times shuffled | {times:.2f} | |")
    print(f"| the same, were our shuffle to cost nothing | {limit:.2f} | |")
    return {"seconds": seconds, "memory": memory, "times": times, "limit": limit}


def built(path: Path, folder: Path) -> Path:
    """The program at a path, or what a compiler makes of the source in a folder.

    Raises:
        SystemExit: there is no compiler.
    """
    if path.is_file():
        return path.resolve()
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise SystemExit("no compiler for terashuf: install g++, or name the program itself")
    program = folder.resolve() / "terashuf"
    subprocess.run([compiler, *_FLAGS, "-o", program, path / "terashuf.cc"], check=True)
    return program
