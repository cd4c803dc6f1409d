"""What do many streams cost: rate beside one, and threads, memory maps and memory of all processes?

Run: python -m benchmarks.reading.streams [--streams 100] [--workers 4] [--ranks 2] [--steps 400]
Makes small datasets of random ids, trains on them as so many ranks at once, each with its workers,
and looks at /proc while batches come. Rates are in process, of processor time, best of rounds:
mixtures of constant proportions and of ramps beside one stream, and steps and lengths by schedules.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from tests.streaming_ext.build import build

LENGTH, BATCH = 2048, 16


def make(folder: Path, streams: int) -> list[Path]:
    """Datasets of some 120 sequences in three shards each, and one of as many as all of them."""
    rng = np.random.default_rng(0)
    roots = []
    for number, documents in enumerate([220] * streams + [220 * streams]):
        roots.append(folder / f"{number:03}")
        lengths = np.maximum(2, rng.lognormal(6.5, 1.0, documents)).astype(int)
        build(
            roots[-1],
            [[("train", rng.integers(0, 99, int(length))) for length in lengths]],
            sequence_length=LENGTH,
            compression="none",
            shard_samples=40,
        )
    return roots


def loader_of(
    roots: list[Path],
    *,
    rank: int = 0,
    ranks: int = 1,
    workers: int = 0,
    steps: int = 400,
    ramp: bool = False,
    **changes: Any,
) -> StreamingTokenLoader:
    """A loader of one rank."""
    streams = [
        TokenStream(local=root, proportion=f"0:{1 + n % 7}->3 1B:3" if ramp else 1 + n % 7)
        for n, root in enumerate(roots)
    ]
    settings: dict[str, Any] = {
        "batch_size": BATCH // ranks,
        "shuffle": True,
        "epoch_size": steps * BATCH,
        "dp_rank": rank,
        "dp_world_size": ranks,
    }
    dataset = StreamingTokenDataset(streams=streams, **(settings | changes))
    return StreamingTokenLoader(dataset, num_workers=workers)


def usage(pid: int) -> dict[str, int]:
    """Threads, memory maps, and megabytes that a process has for itself and with others."""
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    rollup = (proc / "smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in rollup}
    return {
        "threads": int(status["Threads"]),
        "maps": len((proc / "maps").read_text().splitlines()),
        "MB of its own": (sizes["Private_Dirty"] + sizes["Private_Clean"]) // 1024,
        "MB with its part of what is shared": sizes["Pss"] // 1024,
        "GB of addresses": int(status["VmSize"].split()[0]) >> 20,
    }


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def train(roots: list[Path], rank: int, options: argparse.Namespace, told: Any) -> None:
    """One rank; tells of itself and of its workers in the middle of the epoch."""
    steps = options.steps
    loader = loader_of(roots, rank=rank, ranks=options.ranks, workers=options.workers, steps=steps)
    before = set(children(os.getpid()))
    for step, _ in enumerate(loader):
        if step == steps // 2:
            own = [pid for pid in children(os.getpid()) if pid not in before]
            told.put({"rank": usage(os.getpid()), "workers": [usage(pid) for pid in own]})


def rate(loader: StreamingTokenLoader) -> float:
    """Million tokens a second of processor time."""
    started, tokens = time.process_time(), 0
    for batch in loader:
        tokens += batch["tokens"].numel()
    return tokens / (time.process_time() - started) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        *roots, whole = make(Path(folder), options.streams)
        context = multiprocessing.get_context("spawn")
        for count in (1, options.streams):
            told = context.Queue()
            ranks = [
                context.Process(target=train, args=(roots[:count], rank, options, told))
                for rank in range(options.ranks)
            ]
            for process in ranks:
                process.start()
            found = [told.get() for _ in ranks]
            for process in ranks:
                process.join()
            everyone = [each for one in found for each in (one["rank"], *one["workers"])]
            print(
                json.dumps(
                    {
                        "streams": count,
                        "processes": len(everyone),
                        "most of a rank": most([one["rank"] for one in found]),
                        "most of a worker": most(
                            [each for one in found for each in one["workers"]]
                        ),
                        "all": {name: sum(each[name] for each in everyone) for name in everyone[0]},
                    }
                )
            )
        kinds: dict[str, dict[str, Any]] = {
            "one stream": {"roots": [whole]},
            "batches by a schedule": {
                "roots": [whole],
                "batch_size": None,
                "global_batch": "0:8 4M:16 8M:32",
            },
            "lengths by a schedule": {"roots": [whole], "sequence_length": "0:512 4M:1024 8M:2048"},
            "all streams": {"roots": roots},
            "all streams, in ramps": {"roots": roots, "ramp": True},
        }
        steps = 10 * options.steps
        loaders = {name: loader_of(**kind, steps=steps) for name, kind in kinds.items()}
        best = dict.fromkeys(loaders, 0.0)
        for _ in range(options.rounds):
            for name, loader in loaders.items():
                best[name] = max(best[name], rate(loader))
        print(json.dumps({name: round(value) for name, value in best.items()}))


def most(each: list[dict[str, int]]) -> dict[str, int]:
    """The largest of each figure."""
    return {name: max(one[name] for one in each) for name in each[0]} if each else {}


if __name__ == "__main__":
    main()
