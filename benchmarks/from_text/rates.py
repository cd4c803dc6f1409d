"""The cost of training straight from text, beside the engine alone.

Run: python -m benchmarks.from_text.rates FOLDER --tokenizer FILE [--pattern gpt2] [--length 1024]
Each figure is of a process of its own, all on the same files: the engine alone on texts in memory;
the first run, which makes the dataset; further epochs in this process and in one and two workers;
and the first batch of one that goes on in the middle. Tokens a second, by
the clock from the first line of the script's work, and by the processor time of all its processes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import machine

RUNS = (
    "engine",
    "making",
    "no workers",
    "1 worker",
    "2 workers",
    "in the middle",
)


def engine_alone(options: argparse.Namespace, cache: Path) -> dict[str, Any]:
    from streaming_ext.format.spec import ReadOptions
    from streaming_ext.text.formats import format_of
    from streaming_ext.text.listing import list_sources
    from streaming_ext.text.tokenizer.engine import choose_engine
    from streaming_ext.text.tokenizer.load import open_saved

    reading = ReadOptions()
    texts = [
        batch.texts
        for source in list_sources([options.folder])
        for batch in format_of(source.url, reading).read(Path(source.url), reading)
    ]
    engine = choose_engine(open_saved(next(cache.glob("text-*/tokenizer"))), engine="auto")
    began, cpu = time.perf_counter(), time.process_time()
    tokens = sum(len(engine.encode(some).ids) + len(some) for some in texts)
    return {
        "tokens": tokens,
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "threads": 1,
    }


def epoch(options: argparse.Namespace, cache: Path, run: str) -> dict[str, Any]:
    from streaming_ext import StreamingTextDataset, StreamingTokenLoader

    workers = {"1 worker": 1, "2 workers": 2}.get(run, 0)
    before, began = time.process_time(), time.perf_counter()
    dataset = StreamingTextDataset(
        sources=options.folder,
        tokenizer=options.tokenizer,
        pattern=options.pattern,
        local=cache,
        sequence_length=options.length,
        batch_size=8,
        shuffle=True,
        shuffle_seed=17,
        shuffle_block_size=options.window,
        scan_threads=1,
    )
    loader = StreamingTokenLoader(dataset, num_workers=workers)
    if run == "in the middle":
        loader.skip(len(loader) // 2)
    opened = time.perf_counter() - began
    first, tokens, cpu = None, 0, 0.0
    children = psutil.Process().children
    for batch in loader:
        if first is None:
            first = time.perf_counter() - began
        tokens += batch["tokens"].numel()
        if tokens // batch["tokens"].numel() % 500 == 0:
            cpu = max(cpu, sum(sum(p.cpu_times()[:2]) for p in children()))
        if run == "in the middle":
            break
    cpu += time.process_time() - before
    return {
        "tokens": tokens,
        "seconds": time.perf_counter() - began,
        "opened": opened,
        "first batch": first,
        "cpu": cpu,
        "state bytes": len(json.dumps(loader.state_dict())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--pattern")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--run", choices=RUNS, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        found = (
            engine_alone(options, options.cache)
            if options.run == "engine"
            else epoch(options, options.cache, options.run)
        )
        print(json.dumps(found))
        return
    results: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory() as folder:
        for run in ("making", *(run for run in RUNS if run != "making")):
            command = [sys.executable, "-m", "benchmarks.from_text.rates", *sys.argv[1:]]
            ended = subprocess.run(
                [*command, "--run", run, "--cache", folder],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            found = results[run] = json.loads(ended.stdout)
            print(
                f"{run:14}",
                f"{found['tokens'] / found['seconds'] / 1e6:7.1f} M tokens/s,",
                f"{found['tokens'] / found['cpu'] / 1e6:6.1f} M a second of processor time,",
                {k: round(v, 2) for k, v in found.items() if k not in {"tokens", "cpu"}},
                flush=True,
            )
    if options.result:
        options.result.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
