"""The limits of the second phase of a shuffle: copying its bytes, and packing its shards."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import common
from streaming_ext.format.compression import Compression, decompress
from streaming_ext.format.reading import read_manifest, read_record
from streaming_ext.format.schema import content_hash
from streaming_ext.store import LocalStorage


def copy_seconds(size: int, folder: Path) -> float:
    """Measure the seconds of `cp` until a file of `size` bytes is on the disk."""
    source, target = folder / "cp-source", folder / "cp-target"
    source.write_bytes(np.random.default_rng(0).bytes(size))
    subprocess.run(["sync", source], check=True)
    began = time.monotonic()
    subprocess.run(["cp", source, target], check=True)
    subprocess.run(["sync", target], check=True)
    seconds = time.monotonic() - began
    source.unlink()
    target.unlink()
    return seconds


def packing_seconds(dataset: Path, folder: Path, *, workers: int) -> float:
    """Measure processes that read, hash, compress and write the raw shards of a dataset.

    Their start is not counted; the raw shards are as lately written as runs are when they are read.

    Args:
        dataset: as it was published.
        folder: the folder to work in.
        workers: the number of processes.
    """
    storage = LocalStorage(dataset)
    manifest = read_manifest(storage)
    raw = folder / "raw-shards"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir()
    paths = []
    for part in manifest.parts:
        for split, held in read_record(storage, part.part).splits.items():
            for shard in held.shards:
                data = (dataset / split / shard.name).read_bytes()
                if shard.zip_name is not None:
                    data = decompress(
                        data, codec=manifest.spec.compression, raw_size=shard.raw_bytes
                    )
                paths.append(raw / f"{split}-{shard.raw_name.replace('/', '-')}")
                paths[-1].write_bytes(data)
    os.sync()
    seconds = common.pool_seconds(partial(_pack, manifest.spec.compression), paths, workers)
    shutil.rmtree(raw)
    return seconds


def _pack(codec: str, path: Path) -> None:
    data = path.read_bytes()
    content_hash(data)
    if compression := Compression.parse(codec):
        data = compression.compress(data)
        content_hash(data)
    with path.with_suffix(".packed").open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
