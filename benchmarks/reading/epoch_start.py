"""How long does an epoch of 732 million sequences take to start, and how much memory is it?

Run: python -m benchmarks.reading.epoch_start [--stock]
A synthetic index of 46,000 shards is opened as one of 64 ranks; no shard exists, the batches are
planned and not read. With --stock, mosaicml-streaming's order is generated for 10^7 and 10^8.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from streaming_ext import StreamingTokenDataset
from streaming_ext.format.layout import MANIFEST
from streaming_ext.format.manifest import Manifest, SplitSummary
from streaming_ext.format.mds import MdsFormat
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.shard import Shard
from streaming_ext.format.spec import DatasetSpec, TokenizerIdentity

LENGTH, SAMPLES, RANKS, WORKERS = 2048, 15_913, 64, 2


def write(root: Path, shards: int) -> None:
    """The index and manifest of a dataset whose shards are not there."""
    form = MdsFormat(
        sequence_length=LENGTH, dtype="uint16", shard_size=1 << 26, compression="zstd:1"
    )
    entries = []
    for number in range(shards):
        name = form.shard_name("train", number // 20, number % 20)
        entries.append(
            Shard(
                samples=SAMPLES,
                raw_name=name,
                raw_bytes=form.raw_size(SAMPLES),
                raw_hash=f"{number:032x}",
                zip_name=f"{name}.zstd",
                zip_bytes=40_000_000,
                zip_hash=f"{number:032x}",
            )
        )
    data = form.index(entries)
    (root / "train").mkdir(parents=True)
    (root / "train/index.json").write_bytes(data)
    tokenizer = TokenizerIdentity(
        kind="tiktoken", name="gpt2", vocab_size=50257, eot_id=50256, eot_token="", fingerprint="x"
    )
    spec = DatasetSpec(
        text_column="text",
        sequence_length=LENGTH,
        holdout_fraction=0,
        holdout_seed=0,
        shard_size=1 << 26,
        compression="zstd:1",
        tokenizer=tokenizer,
    )
    summary = SplitSummary(
        index=FileRecord.of("train/index.json", data),
        documents=0,
        tokens=0,
        padding=0,
        samples=shards * SAMPLES,
        shards=shards,
    )
    manifest = Manifest(spec=spec, parts=(), splits={"train": summary}, tokenizer_files=())
    (root / MANIFEST).write_bytes(to_json(manifest))


def resident() -> float:
    """Memory of this process now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def open_and_plan(root: Path) -> None:
    """Open the dataset as rank 5 and plan its first block of steps, then one deep in the epoch."""
    before = resident()
    started = time.perf_counter()
    dataset = StreamingTokenDataset(
        local=root, batch_size=8, shuffle=True, dp_rank=5, dp_world_size=RANKS
    )
    opened = time.perf_counter()
    plan = dataset.plan
    plan.sequences(plan.start(0), np.arange(64))
    first = time.perf_counter()
    state = dataset.state_dict() | {"sample_in_epoch": plan.epoch_size // 2 // 512 * 512}
    dataset.load_state_dict(state)
    plan.sequences(dataset.start_cursor(), np.arange(64))
    resumed = time.perf_counter()
    print(
        json.dumps(
            {
                "sequences": dataset.size,
                "shards": dataset.reader.num_shards,
                "open_s": round(opened - started, 3),
                "first_steps_s": round(first - opened, 3),
                "resume_s": round(resumed - first, 3),
                "memory_mb": round(resident() - before, 1),
                "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1),
                "rss_before_mb": round(before, 1),
            }
        )
    )


def stock(count: int) -> None:
    """What stock does at every start: the partition and the shuffle of every id."""
    from streaming.base.partition import get_partitions
    from streaming.base.shuffle import get_shuffle

    from streaming_ext.training.stock import streaming  # noqa: F401

    before, started = resident(), time.perf_counter()
    ids = get_partitions("relaxed", count, count, 8, 8, 8, WORKERS, 8, 0)
    sizes = np.full(count // SAMPLES + 1, SAMPLES)
    sizes[-1] = count - SAMPLES * (count // SAMPLES)
    shuffled = get_shuffle("py1e", sizes[sizes > 0], 8, 9176, 0, 1 << 18)
    ids = np.where(ids != -1, shuffled[ids], -1)
    print(
        json.dumps(
            {
                "stock_sequences": count,
                "seconds": round(time.perf_counter() - started, 2),
                "memory_mb": round(resident() - before, 1),
                "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1),
            }
        )
    )


def main() -> None:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        if arguments.one.isdecimal():
            stock(int(arguments.one))
        else:
            open_and_plan(Path(arguments.one))
        return
    with tempfile.TemporaryDirectory() as folder:
        for shards in (460, 4600, 46_000):
            root = Path(folder, str(shards))
            write(root, shards)
            subprocess.run([sys.executable, __file__, "--one", str(root)], check=True)
    if arguments.stock:
        for count in (10**7, 10**8):
            subprocess.run([sys.executable, __file__, "--one", str(count)], check=True)


if __name__ == "__main__":
    main()
