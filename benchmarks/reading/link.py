"""Does a link of 100 MB/s stay full while a rank reads compressed shards from S3?

Run: python -m benchmarks.reading.link [--megabytes-per-second 100] [--shards 12]
A small S3 server in a process of its own hands out bytes at the speed of the link, over all
connections together. Measured: the share of the link's speed that the epoch reached, and the
longest wait for a batch after the first shard, with a training step that takes no time.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.reading.s3_link import s3_link
from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from tests.streaming_ext.build import build

LENGTH, SAMPLES = 2048, 4096


def serve(root: str, speed: float, pipe: Connection) -> None:
    """Serve until told to stop."""
    with s3_link(Path(root), speed) as server:
        pipe.send(server.options)
        pipe.recv()
        pipe.send(server.sent)


def main() -> None:
    """Write, serve, read an epoch, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes-per-second", type=float, default=100)
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "data")
        parts = [
            [("train", rng.integers(100, 50_000, SAMPLES * LENGTH - 1))]
            for _ in range(arguments.shards)
        ]
        build(root, parts, sequence_length=LENGTH, shard_samples=SAMPLES, vocab_size=50_257)
        ours, theirs = multiprocessing.Pipe()
        speed = arguments.megabytes_per_second * 1e6
        server = multiprocessing.Process(target=serve, args=(str(root), speed, theirs))
        server.start()
        dataset = StreamingTokenDataset(
            remote="s3://bucket",
            local=Path(folder, "cache"),
            batch_size=16,
            shuffle=True,
            num_canonical_nodes=1,
            shuffle_block_size=SAMPLES,
            dp_rank=0,
            dp_world_size=1,
            storage_options=ours.recv(),
        )
        started = time.perf_counter()
        waits = []
        last = started
        for _ in StreamingTokenLoader(dataset, num_workers=arguments.workers):
            now = time.perf_counter()
            waits.append(now - last)
            last = now
        seconds = time.perf_counter() - started
        ours.send("stop")
        sent = ours.recv()
        server.join()
    print(
        json.dumps(
            {
                "workers": arguments.workers,
                "megabytes": round(sent / 1e6),
                "seconds": round(seconds, 2),
                "first_batch_s": round(waits[0], 2),
                "longest_later_wait_s": round(max(waits[1:]), 2),
                "one_shard_takes_s": round(sent / arguments.shards / speed, 2),
                "share_of_link": round(sent / speed / seconds, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
