"""The cost of a batch with masks beside a plain one, in processor time.

Run: python -m benchmarks.reading.masks [--folder FOLDER] [--rounds N]
The data of peers.py, batch 16 by 2048, in this process, shuffled and warm. All kinds of batches
take turns, so that each round meets them with the machine in the same state. The limits are a plain
batch and the bare gather, each with as many bytes filled as all masks have.
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
import torch

from benchmarks.reading.peers import (
    BATCH,
    LENGTH,
    MANIFEST,
    SAMPLES,
    gather_and_fill,
    shardmill,
    write,
)

A_TOKEN = ("targets", "position_ids", "document_ids")
VARLEN = ("cu_seqlens", "max_seqlen")


def plain_and_fill(root: Path) -> Iterator[Any]:
    """A plain batch, and the bytes of all masks filled."""
    arrays = [np.empty((BATCH, LENGTH), kind) for kind in (np.int64, np.int32, np.int32)]
    for number, batch in enumerate(shardmill(root, 0)):
        for array in arrays:
            array.fill(number)
        yield batch


def cost(batches: Iterator[Any], count: int) -> float:
    """Processor time of a batch, in microseconds."""
    started = time.process_time_ns()
    for _ in range(count):
        next(batches)
    return (time.process_time_ns() - started) / count / 1000


def main() -> None:
    """Measure all, print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each of 16 shards")
    parser.add_argument("--batches", type=int, default=1500, help="a round")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    root = arguments.folder or Path(tempfile.mkdtemp(prefix="shardmill-masks-"))
    if not (root / MANIFEST).exists():
        write(root, arguments.samples)
    kinds = {
        "plain": shardmill(root, 0),
        "cu_seqlens, max_seqlen": shardmill(root, 0, VARLEN),
        **{name: shardmill(root, 0, (name,)) for name in A_TOKEN},
        "the three": shardmill(root, 0, A_TOKEN),
        "all five": shardmill(root, 0, A_TOKEN + VARLEN),
        "limit: plain and fill": plain_and_fill(root),
        "limit: bare gather and fill": gather_and_fill(root),
    }
    for batches in kinds.values():
        cost(batches, arguments.batches)  # every shard is open then
    rounds = [
        {name: cost(batches, arguments.batches) for name, batches in kinds.items()}
        for _ in range(arguments.rounds)
    ]
    results = {}
    for name in kinds:
        costs = [each[name] for each in rounds]
        times = statistics.median(each[name] / each["plain"] for each in rounds)
        results[name] = {"least": min(costs), "median": statistics.median(costs), "times": times}
        print(
            f"{name:28s} least {min(costs):5.1f} us, median {statistics.median(costs):5.1f} us, "
            f"{times:.2f} times a plain batch"
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
