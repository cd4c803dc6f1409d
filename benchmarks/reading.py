"""The rate of one rank: Shardmill, stock StreamingDataLoader, litData and a bare gather.

Every reader gets the same ids from a warm page cache, shuffled, in batches of 16 by 2048, in this
process and with one worker. Figures are the best of several rounds, in which the readers take
turns, so that all of them meet the machine in the same state. With `--extras`, the figure is the
processor time per batch, with masks and without; the limit is the bare gather, plus filling as
many bytes as the masks have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import common
from benchmarks.corpus import make_corpus
from benchmarks.throughput import raw_shard_ids
from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.training.stock import streaming

BATCH, LENGTH = 16, 2048
EXTRAS = {
    "plain": (),
    "targets, position_ids, document_ids": ("targets", "position_ids", "document_ids"),
    "cu_seqlens, max_seqlen": ("cu_seqlens", "max_seqlen"),
}


def rate(make: Callable[[], Iterator[Any]], count: int) -> float:
    """Measure million tokens per second over `count` batches, after `count` / 10 to warm up."""
    batches = make()
    for _ in range(count // 10 + 1):
        next(batches)
    started = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count * BATCH * LENGTH / (time.perf_counter() - started) / 1e6


def cost(batches: Iterator[Any], count: int) -> float:
    """Measure the processor time per batch, in microseconds."""
    started = time.process_time_ns()
    for _ in range(count):
        next(batches)
    return (time.process_time_ns() - started) / count / 1000


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of epoch after epoch."""
    while True:
        yield from loader


def shardmill(root: Path, workers: int, extras: tuple[str, ...] = ()) -> Iterator[Any]:
    """Return batches of this project's loader."""
    dataset = StreamingTokenDataset(
        local=root, batch_size=BATCH, shuffle=True, extras=extras, dp_rank=0, dp_world_size=1
    )
    return endless(StreamingTokenLoader(dataset, num_workers=workers))


def stock(root: Path) -> Iterator[Any]:
    """Return batches of mosaicml-streaming's own dataset and loader, on the same shards."""
    dataset = streaming.StreamingDataset(
        local=str(root / "train"), shuffle=True, batch_size=BATCH, num_canonical_nodes=1
    )
    return endless(streaming.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0))


def gather(flat: Path, *, fill: bool = False) -> Iterator[Any]:
    """Yield random rows of a memory map, widened to int64: the least possible work."""
    arrays = [np.empty((BATCH, LENGTH), kind) for kind in (np.int64, np.int32, np.int32) if fill]
    rows = np.memmap(flat, np.uint16, "r").reshape(-1, LENGTH)
    ids = np.random.default_rng(1).permutation(len(rows) // BATCH * BATCH).reshape(-1, BATCH)
    while True:
        for number, batch in enumerate(ids):
            for array in arrays:
                array.fill(number)
            yield torch.from_numpy(np.take(rows, batch, axis=0).astype(np.int64))


def litdata(flat: Path, workers: int) -> float:
    """Measure million tokens per second of litData's TokensLoader, on its own format."""
    output = common.SCRATCH / "reading-litdata"
    words = ("litdata_read", flat, "--output", common.fresh(output), "--workers", workers)
    told, _ = common.peer(*words, env="litdata")
    return float(told["tokens"]) / float(told["seconds"]) / 1e6


def main() -> None:
    """Measure all and print a table."""
    parser = common.parser(__doc__, megabytes=1040.0, batches=3000, rounds=3)
    parser.add_argument("--extras", action="store_true", help="measure batches with masks")
    parser.add_argument("--only", nargs="+", metavar="READER", help="some of them, by name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    root, flat = common.SCRATCH / "reading", common.SCRATCH / "reading.bin"
    options = ("--compression", "none", "--sequence-length", str(LENGTH))
    common.shard(make_corpus(args.megabytes, 8), root, *options)
    with flat.open("wb") as file:
        for shard in sorted((root / "train").rglob("*.mds")):
            raw_shard_ids(shard).tofile(file)
    contenders: dict[str, Callable[[], float]]
    if args.extras:
        kinds = {name: shardmill(root, 0, extras) for name, extras in EXTRAS.items()}
        kinds["bare gather and filling"] = gather(flat, fill=True)
        for batches in kinds.values():
            cost(batches, args.batches)  # opens every shard
        contenders = {name: partial(cost, kind, args.batches) for name, kind in kinds.items()}
    else:
        readers = {
            "bare gather, in process": partial(gather, flat),
            "shardmill, in process": partial(shardmill, root, 0),
            "shardmill, 1 worker": partial(shardmill, root, 1),
        }
        contenders = {name: partial(rate, make, args.batches) for name, make in readers.items()}
        contenders["stock, in process"] = partial(rate, partial(stock, root), args.batches // 30)
        contenders["litdata, in process"] = partial(litdata, flat, 0)
        contenders["litdata, 1 worker"] = partial(litdata, flat, 1)
    chosen = {name: contenders[name] for name in args.only or contenders}
    values = common.rounds(chosen, args.rounds)
    middle, unit = (
        (common.medians(values), "us of processor time per batch")
        if args.extras
        else ({name: max(each) for name, each in values.items()}, "million tokens/s")
    )
    for name, value in middle.items():
        print(f"{name:40s} {value:6.1f} {unit}")
    common.save(args.result, values=values)


if __name__ == "__main__":
    main()
