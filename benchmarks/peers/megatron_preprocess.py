"""Megatron-LM's manner: a pool encodes documents one by one, the parent writes .bin and .idx."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from contract import Clock, arguments, load_tokenizers

os.environ["TOKENIZERS_PARALLELISM"] = "false"
DOCUMENTS_A_TASK = 32

tokenizer_and_end = functools.cache(load_tokenizers)


def texts(paths: list[Path]) -> Iterator[str]:
    """The documents of all files."""
    for path in paths:
        if path.suffix == ".jsonl":
            with path.open() as lines:
                yield from (json.loads(line)["text"] for line in lines)
            continue
        for batch in pq.ParquetFile(path).iter_batches(columns=["text"]):
            yield from batch.column(0).to_pylist()


def encode(text: str, vocabulary: Path) -> list[int]:
    """The ids of one document and its end."""
    tokenizer, end = tokenizer_and_end(vocabulary)
    return [*tokenizer.encode(text, add_special_tokens=False).ids, end]


def main() -> None:
    """Encode and write all documents."""
    args = arguments()
    work = functools.partial(encode, vocabulary=args.tokenizer)
    lengths = []
    with (
        multiprocessing.Pool(args.workers) as pool,
        (args.output / "text_document.bin").open("wb") as out,
    ):
        clock = Clock()
        for ids in pool.imap(work, texts(args.files), DOCUMENTS_A_TASK):
            out.write(np.array(ids, np.uint16).tobytes())
            lengths.append(len(ids))
        np.array(lengths, np.int32).tofile(args.output / "text_document.idx")
        clock.report(sum(lengths))


if __name__ == "__main__":
    main()
