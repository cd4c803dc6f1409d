"""Is any way of loading slower than half of plain: packed, scheduled, mixed, filtered?

Run: python -m benchmarks.reading.modes [--streams 100] [--rounds 9]
In this process, warm, batch 16 by 2048, in processor time (that of threads that read ahead
included). All kinds take turns, so that each round meets them with the machine in the same state;
told is the median over rounds of each rate beside that of plain loading. Plain loading beside the
bare gather and stock StreamingDataLoader is in peers.py.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.reading.packing import write_dataset
from benchmarks.reading.peers import BATCH, LENGTH, endless
from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from tests.streaming_ext.build import build

TOKENS = 400 * BATCH * LENGTH  # a round


def write_streams(folder: Path, count: int) -> list[Path]:
    """Small datasets of random ids, some 300 sequences each."""
    rng = np.random.default_rng(0)
    roots = []
    for number in range(count):
        lengths = np.maximum(2, rng.lognormal(6.5, 1.0, 600)).astype(int)
        documents = [("train", rng.integers(0, 99, int(length))) for length in lengths]
        roots.append(folder / f"{number:03}")
        build(roots[-1], [documents], sequence_length=LENGTH, compression="none", shard_samples=100)
    return roots


def loops_of(folder: Path, streams: int) -> dict[str, Iterator[Any]]:
    """Batches of each kind, epoch after epoch."""
    root = folder / "dataset"
    write_dataset(root)
    loader = loader_of(local=root)
    first = loader.trace(0)[0].spans[0]
    table = {"source": [first.source], "row": [first.row]}
    pq.write_table(pa.table(table), folder / "excluded.parquet")
    roots = write_streams(folder / "streams", streams)
    mixed = [
        TokenStream(local=root, proportion=1 + number % 7) for number, root in enumerate(roots)
    ]
    kinds: dict[str, dict[str, Any]] = {
        "plain": {"local": root},
        "packed": {"local": root, "packing": "best_fit"},
        "steps by a schedule": {"local": root, "batch_size": None, "global_batch": "0:8 9M:16"},
        "lengths by a schedule": {"local": root, "sequence_length": "0:1024 9M:2048"},
        f"mixed of {streams}": {"streams": mixed},
        "documents excluded": {"local": root, "exclude": folder / "excluded.parquet"},
        "domains of tokens": {"local": root, "domain_by": "folder", "extras": ["domain_ids"]},
        "rows filtered": {"local": root, "max_repeated_ngram": 32},
    }
    return {name: endless(lambda kind=kind: loader_of(**kind)) for name, kind in kinds.items()}


def loader_of(**settings: Any) -> StreamingTokenLoader:
    common = {
        "batch_size": BATCH,
        "sequence_length": LENGTH,
        "shuffle": True,
        "dp_rank": 0,
        "dp_world_size": 1,
    }
    return StreamingTokenLoader(StreamingTokenDataset(**(common | settings)))


def rate(batches: Iterator[Any]) -> float:
    """Million tokens a second of processor time."""
    started, left = time.process_time(), TOKENS
    while left > 0:
        left -= next(batches)["tokens"].numel()
    return TOKENS / (time.process_time() - started) / 1e6


def main() -> None:
    """Measure all, print tables and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="shardmill-modes-") as temporary:
        loops = loops_of(Path(temporary), arguments.streams)
        for loop in loops.values():
            rate(loop)  # what is read is open then
        rounds = [
            {name: rate(loop) for name, loop in loops.items()} for _ in range(arguments.rounds)
        ]
    told = {}
    for name in loops:
        told[name] = statistics.median(each[name] / each["plain"] for each in rounds)
        median = statistics.median(each[name] for each in rounds)
        print(f"{name:24s} {median:7.0f} million tokens/s, {told[name]:.3f} of plain")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
