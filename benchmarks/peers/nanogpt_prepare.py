"""nanoGPT's manner: `map` with tiktoken a document at a time, then one flat memory-mapped file."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
from contract import Clock, arguments, load_tiktoken
from datasets import Dataset, concatenate_datasets


def main() -> None:
    """Load, map, write train.bin."""
    args = arguments()
    encoding, end = load_tiktoken(args.tokenizer)

    def encode(row: dict[str, str]) -> dict[str, object]:
        ids = [*encoding.encode_ordinary(row["text"]), end]
        return {"ids": ids, "len": len(ids)}

    clock = Clock()
    cache = str(args.output / "cache")
    loaded = [Dataset.from_parquet(str(path), cache_dir=cache) for path in args.files]
    texts = concatenate_datasets(loaded).select_columns(["text"])
    tokens = texts.map(
        encode, num_proc=args.workers, remove_columns=["text"], new_fingerprint="nanogpt"
    )
    total = int(np.sum(tokens["len"], dtype=np.int64))
    flat = np.memmap(args.output / "train.bin", np.uint16, "w+", shape=(total,))
    at, pieces = 0, 1024
    for piece in range(min(pieces, len(tokens))):
        shard = tokens.shard(min(pieces, len(tokens)), piece, contiguous=True).with_format("numpy")
        ids = np.concatenate(shard["ids"])
        flat[at : at + len(ids)] = ids
        at += len(ids)
    flat.flush()
    clock.report(total)


if __name__ == "__main__":
    main()
