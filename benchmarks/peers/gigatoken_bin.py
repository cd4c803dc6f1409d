"""gigatoken alone: its own Parquet reader and threads, a flat .bin a file, all tokens in memory."""

from __future__ import annotations

import os

import gigatoken
import numpy as np
from contract import Clock, arguments


def main() -> None:
    """Encode file by file, insert the ends, write."""
    args = arguments()
    os.environ["RAYON_NUM_THREADS"] = str(args.workers)  # read when the threads start
    tokenizer = gigatoken.Tokenizer.from_tiktoken(
        args.tokenizer, pretokenizer="gpt2", special_tokens={}
    )
    end = tokenizer.vocab_size
    clock, total = Clock(), 0
    for path in args.files:
        source = gigatoken.ParquetFileSource([path], column="text")
        encoded = tokenizer.encode_files(source, parallel=True).layout
        ends = np.asarray(encoded.offsets)[1:]
        ids = np.insert(np.asarray(encoded.content.data).astype(np.uint16), ends, end)
        ids.tofile(args.output / f"{path.stem}.bin")
        total += len(ids)
    clock.report(total)


if __name__ == "__main__":
    main()
