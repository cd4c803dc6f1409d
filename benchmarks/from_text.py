"""The cost of training straight from text, compared with the engine alone.

Each figure is measured in a process of its own, on the same files: the first run, which makes the
dataset; the engine alone on texts in memory; further epochs without workers, and with one and two.
Figures are tokens per second, by the clock from the start of the work, and by the processor time of
all processes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import common
from benchmarks.corpus import make_corpus
from streaming_ext import StreamingTextDataset, StreamingTokenLoader
from streaming_ext.text.tokenizer.engine import choose_engine
from streaming_ext.text.tokenizer.load import open_saved

ENGINE = "engine"
RUNS = {"making": 0, ENGINE: 0, "no workers": 0, "1 worker": 1, "2 workers": 2}


def engine_alone(files: list[Path], cache: Path) -> dict[str, Any]:
    """Encode texts in memory with the engine; return the tokens, and the seconds."""
    batches = [
        batch["text"].cast(pa.large_string())
        for file in files
        for batch in pq.ParquetFile(file).iter_batches(columns=["text"])
    ]
    engine = choose_engine(open_saved(next(cache.glob("text-*/tokenizer"))), engine="auto")
    began, cpu = time.perf_counter(), time.process_time()
    tokens = sum(len(engine.encode(texts).ids) + len(texts) for texts in batches)
    seconds = time.perf_counter() - began
    return {"tokens": tokens, "seconds": seconds, "cpu": time.process_time() - cpu}


def epoch(files: list[Path], cache: Path, length: int, workers: int) -> dict[str, Any]:
    """Run an epoch; return its tokens, its seconds, and the seconds to its first batch."""
    before, began = time.process_time(), time.perf_counter()
    dataset = StreamingTextDataset(
        sources=[str(file) for file in files],
        tokenizer=str(common.default_tokenizer()),
        pattern="gpt2",
        local=cache,
        sequence_length=length,
        batch_size=8,
        shuffle=True,
        shuffle_seed=17,
        scan_threads=1,
    )
    first, tokens, cpu = 0.0, 0, 0.0
    for number, batch in enumerate(StreamingTokenLoader(dataset, num_workers=workers)):
        first = first or time.perf_counter() - began
        tokens += batch["tokens"].numel()
        if number % 500 == 0:
            cpu = sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children())
    return {
        "tokens": tokens,
        "seconds": time.perf_counter() - began,
        "first batch": first,
        "cpu": cpu + time.process_time() - before,
    }


def main() -> None:
    """Measure each run in a process of its own."""
    parser = common.parser(__doc__, megabytes=1040.0, length=1024)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    files = make_corpus(args.megabytes, 8)
    if args.run:
        run, cache = args.run[0], Path(args.run[1])
        alone = run == ENGINE
        found = engine_alone(files, cache) if alone else epoch(files, cache, args.length, RUNS[run])
        print(json.dumps(found))
        return
    results = {}
    with tempfile.TemporaryDirectory() as cache:
        for run in RUNS:
            command = [sys.executable, "-m", "benchmarks.from_text", *sys.argv[1:]]
            output = common.run([*command, "--run", run, cache]).output
            results[run] = each = json.loads(output.splitlines()[-1])
            rates = (each["tokens"] / each[by] / 1e6 for by in ("seconds", "cpu"))
            print("{:14} {:7.1f} M tokens/s, {:6.1f} M of processor time".format(run, *rates))
    common.save(args.result, runs=results)


if __name__ == "__main__":
    main()
