"""The bare limit: pyarrow reads the column, gigatoken encodes it, and nothing else is done."""

from __future__ import annotations

import functools
import multiprocessing
from pathlib import Path
from typing import Any

import awkward as ak
import gigatoken
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from contract import Clock, arguments

ROW_GROUPS_A_BATCH = 2  # of make_corpus: 9 MB; larger batches are hardly faster, smaller slower


@functools.cache
def tokenizer(path: Path) -> gigatoken.Tokenizer:
    """One tokenizer a process, so its caches stay warm from file to file."""
    pa.set_cpu_count(1)
    return gigatoken.Tokenizer.from_tiktoken(path, pretokenizer="gpt2", special_tokens={})


def as_awkward(texts: pa.LargeStringArray) -> ak.Array:
    """A view of Arrow strings."""
    _, offsets, data = texts.buffers()
    return ak.Array(
        ak.contents.ListOffsetArray(
            ak.index.Index64(np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8)),
            ak.contents.NumpyArray(np.frombuffer(data, np.uint8), parameters={"__array__": "char"}),
            parameters={"__array__": "string"},
        )
    )


def encode(path: Path, vocabulary: Path) -> tuple[int, int]:
    """Tokens, one more for each document's end, and documents of a file."""
    parquet = pq.ParquetFile(path)
    tokens = documents = 0
    for group in range(0, parquet.num_row_groups, ROW_GROUPS_A_BATCH):
        groups = range(group, min(group + ROW_GROUPS_A_BATCH, parquet.num_row_groups))
        table = parquet.read_row_groups(groups, columns=["text"], use_threads=False)
        texts = table["text"].cast(pa.large_string()).combine_chunks()
        encoded = tokenizer(vocabulary).encode_batch(as_awkward(texts), parallel=False)
        tokens += len(encoded.layout.content) + len(texts)
        documents += len(texts)
    return tokens, documents


def _ready(barrier: Any, vocabulary: Path) -> None:
    tokenizer(vocabulary)
    barrier.wait()


def main() -> None:
    """Read and encode all files."""
    args = arguments()
    barrier = multiprocessing.Barrier(args.workers + 1)
    with multiprocessing.Pool(args.workers, _ready, (barrier, args.tokenizer)) as pool:
        barrier.wait()
        clock = Clock()
        work = functools.partial(encode, vocabulary=args.tokenizer)
        counts = list(pool.imap_unordered(work, args.files))
        clock.report(sum(tokens for tokens, _ in counts))


if __name__ == "__main__":
    main()
