"""Writing one shard to scratch: compressed as asked, hashed, under its final name."""

import os
from dataclasses import replace
from pathlib import Path

from streaming_ext.dataset.compression import Compression
from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.shard import Shard


def store_shard(
    folder: Path,
    raw_name: str,
    raw: bytes | memoryview,
    *,
    samples: int,
    compression: Compression | None,
) -> Shard:
    """Write a shard below its split's folder; returns what a record says of it.

    Args:
        folder: of the split, on scratch.
        raw_name: of the shard when it is not compressed, relative to the folder.
        raw: its content.
        samples: how many that are.
        compression: None stores it as it is.
    """
    shard = Shard(
        samples=samples, raw_name=raw_name, raw_bytes=len(raw), raw_hash=content_hash(raw)
    )
    stored = raw
    if compression is not None:
        stored = compression.compress(raw)
        shard = replace(
            shard,
            zip_name=f"{raw_name}.{compression.codec}",
            zip_bytes=len(stored),
            zip_hash=content_hash(stored),
        )
    _write(folder / shard.name, stored)
    return shard


def _write(path: Path, data: bytes | memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        # Have the disk begin, so that putting it in place later has less to wait for.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
