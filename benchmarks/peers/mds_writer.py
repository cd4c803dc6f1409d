"""Stock MDSWriter and tiktoken, packed as llm-foundry does it: a process a file, then a merge."""

from __future__ import annotations

import functools
import multiprocessing
import sys
import types
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from contract import Clock, arguments, load_tiktoken

try:
    from streaming import MDSWriter
except (ImportError, RuntimeError):  # a torchvision that does not load: nothing here needs it
    sys.modules["streaming.vision"] = types.ModuleType("streaming.vision")
    from streaming import MDSWriter
from streaming.base.util import merge_index

SEQUENCE_LENGTH = 2048

encoding_and_end = functools.cache(load_tiktoken)


def convert(path: Path, output: Path, vocabulary: Path) -> tuple[int, int]:
    """Write one file's samples; returns its tokens and samples. What is left at the end is lost."""
    encoding, end = encoding_and_end(vocabulary)
    buffer: list[int] = []
    tokens = samples = 0
    with MDSWriter(
        out=str(output / path.stem),
        columns={"tokens": f"ndarray:uint16:{SEQUENCE_LENGTH}"},
        compression="zstd:1",
        hashes=["xxh3_64"],
        size_limit=64 * 2**20,
    ) as writer:
        for batch in pq.ParquetFile(path).iter_batches(columns=["text"]):
            for text in batch.column(0).to_pylist():
                ids = encoding.encode_ordinary(text)
                tokens += len(ids) + 1
                buffer += ids
                buffer.append(end)
                while len(buffer) >= SEQUENCE_LENGTH:
                    writer.write({"tokens": np.array(buffer[:SEQUENCE_LENGTH], np.uint16)})
                    buffer = buffer[SEQUENCE_LENGTH:]
                    samples += 1
    return tokens, samples


def main() -> None:
    """Convert all files, each into a folder of its own."""
    args = arguments()
    encoding_and_end(args.tokenizer)
    work = functools.partial(convert, output=args.output, vocabulary=args.tokenizer)
    with multiprocessing.Pool(args.workers) as pool:
        clock = Clock()
        counts = list(pool.imap_unordered(work, args.files))
        merge_index(str(args.output))
        clock.report(
            sum(tokens for tokens, _ in counts),
            samples=sum(samples for _, samples in counts),
            shard_bytes=sum(path.stat().st_size for path in args.output.rglob("*.mds.zstd")),
        )


if __name__ == "__main__":
    main()
