"""Does training from text take more memory the more text it has read?

Run: python -m benchmarks.from_text.memory FOLDER --tokenizer FILE [--pattern gpt2] [--gigabytes 20]
FOLDER holds JSON Lines, of which hard links are made beside it until they are so many gigabytes.
Runs: a chain (files, tokenize, an end of text, rows of 1,024, shuffle(1000), batch(8)), and
StreamingTextDataset, which makes a dataset of the text and then reads it, with --cache-limit of
unpacked shards; each also with two workers. Told ten times a stage: memory that the process has for
itself (`RssAnon`), with mapped files (`VmRSS`) and at most by then (`VmHWM`), and what its workers
have for themselves (`Pss_Anon`) and of mapped files (`Pss_File`: tokens in the cache, which the
system may take back), pages that are shared counted in parts. The slope is of what all have for
themselves, over the last three quarters of a stage, in MB a gigabyte of text.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.common import machine

RUNS = ("chain", "chain, 2 workers", "text", "text, 2 workers")
LENGTH, BATCH = 1024, 8
EVERY, TOLD = 2.0, 60.0  # seconds


def memory() -> dict[str, float]:
    """Of this process and its workers, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    own = {
        name: int(line.split()[1]) / 1e3
        for line in lines
        if line.count("kB") == 1
        for name in [line.partition(":")[0]]
    }
    workers = dict.fromkeys(("Pss_Anon", "Pss_File"), 0.0)
    for child in psutil.Process().children(recursive=True):
        try:
            found = Path(f"/proc/{child.pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it ended
            continue
        for name, _, size in (line.partition(":") for line in found.splitlines()):
            if name in workers:
                workers[name] += int(size.split()[0]) / 1e3
    return {name: own[name] for name in ("RssAnon", "VmRSS", "VmHWM")} | workers


@dataclass(slots=True)
class Watch:
    """Looks at memory now and then; `stage` is what is done meanwhile."""

    stage: str = ""
    tokens: int = 0
    began: float = field(default_factory=time.monotonic)
    seen: list[dict[str, Any]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until it is told that all is over."""
        told = 0.0
        while not self.ended.wait(EVERY):
            seconds = time.monotonic() - self.began
            if self.stage:
                self.seen.append(
                    {"stage": self.stage, "seconds": seconds, "tokens": self.tokens, **memory()}
                )
                if seconds > told + TOLD:
                    told = seconds
                    print(self.seen[-1], file=sys.stderr, flush=True)

    def read(self, batches: Iterable[Any], column: str) -> None:
        """All of them."""
        for batch in batches:
            self.tokens += batch[column].numel()


def chain(options: argparse.Namespace, watch: Watch, workers: int) -> None:
    from streaming_ext.transforms import CheckpointableDataset, CheckpointableLoader

    watch.stage = "reading"
    files = CheckpointableDataset.from_files(f"{options.links}/*.jsonl")
    tokens = files.tokenize(options.tokenizer, pattern=options.pattern)
    ended = tokens.ensure_bos_eos(options.tokenizer, pattern=options.pattern)
    dataset = ended.concat_chunk(LENGTH).shuffle(1000).batch(BATCH)
    watch.read(CheckpointableLoader(dataset, num_workers=workers), "input_ids")


def text(options: argparse.Namespace, watch: Watch, workers: int) -> None:
    from streaming_ext import StreamingTextDataset, StreamingTokenLoader

    watch.stage = "making"
    dataset = StreamingTextDataset(
        sources=str(options.links),
        tokenizer=options.tokenizer,
        pattern=options.pattern,
        local=options.links.parent / "cache",
        cache_limit=options.cache_limit,
        sequence_length=LENGTH,
        batch_size=BATCH,
        shuffle=True,
        shuffle_seed=17,
        shuffle_block_size=options.window,
    )
    loader = StreamingTokenLoader(dataset, num_workers=workers)
    watch.stage = "reading"
    watch.read(loader, "tokens")


def slope(seen: list[dict[str, Any]], gigabytes: float) -> float:
    """MB a gigabyte of text, of a stage that went through so many, evenly."""
    later = seen[len(seen) // 4 :]
    owned = [one["RssAnon"] + one["Pss_Anon"] for one in later]
    # Tokens come evenly; while the dataset is made, none do, and time does.
    at = np.array([one["tokens"] or one["seconds"] - seen[0]["seconds"] for one in later])
    return float(np.polyfit(at / at[-1] * gigabytes, owned, 1)[0])


def tell(run: str, seen: list[dict[str, Any]], gigabytes: float) -> dict[str, float]:
    """Print a run, and return the slope of each stage."""
    slopes = {}
    for stage, some in itertools.groupby(seen, lambda one: one["stage"]):
        of_stage = list(some)
        for one in of_stage[:: max(len(of_stage) // 10, 1)]:
            told = ", ".join(
                f"{name} {one[name]:,.0f}"
                for name in ("RssAnon", "VmRSS", "VmHWM", "Pss_Anon", "Pss_File")
            )
            print(
                f"{run}, {stage}: {one['seconds']:6.0f} s, {one['tokens'] / 1e6:7,.0f} M tokens; "
                f"MB: {told}",
                flush=True,
            )
        slopes[stage] = slope(of_stage, gigabytes)
        print(f"{run}, {stage}: {slopes[stage]:+.2f} MB a gigabyte of text", flush=True)
    return slopes


def link(folder: Path, links: Path, gigabytes: float) -> float:
    """Hard links until they are so many gigabytes; returns how many they are."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"{folder} holds no .jsonl files.")
    size = 0
    for number in itertools.count():
        if size >= gigabytes * 1e9:
            return size / 1e9
        file = files[number % len(files)]
        os.link(file, links / f"{number:06}.jsonl")
        size += file.stat().st_size
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--pattern")
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS)
    parser.add_argument("--cache-limit", default="1gb")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--run", choices=RUNS, help=argparse.SUPPRESS)
    parser.add_argument("--links", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        watch = Watch()
        thread = threading.Thread(target=watch.run)
        thread.start()
        workers = 2 if "workers" in options.run else 0
        try:
            (chain if "chain" in options.run else text)(options, watch, workers)
        finally:
            watch.ended.set()
            thread.join()
        print(json.dumps(watch.seen))
        return
    results: dict[str, Any] = {"machine": machine()}
    for run in options.runs:
        with tempfile.TemporaryDirectory(dir=options.folder.absolute().parent) as name:
            links = Path(name) / "links"
            links.mkdir()
            gigabytes = link(options.folder, links, options.gigabytes)
            command = [
                sys.executable,
                "-m",
                "benchmarks.from_text.memory",
                *sys.argv[1:],
                "--run",
                run,
                "--links",
                str(links),
            ]
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            seen = json.loads(ended.stdout.splitlines()[-1])
            results[run] = {"seen": seen, "slopes": tell(run, seen, gigabytes)}
            shutil.rmtree(links)
    if options.result:
        options.result.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
