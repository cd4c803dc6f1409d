"""litdata: `optimize` with a TokensLoader, tiktoken; it compresses no chunks of tokens."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import torch
from contract import Clock, arguments, load_tiktoken
from litdata import TokensLoader, optimize

SEQUENCE_LENGTH = 2048

encoding_and_end = functools.cache(load_tiktoken)


def encode(path: str, vocabulary: Path, counts: Path) -> Iterator[torch.Tensor]:
    """The ids of each document."""
    encoding, end = encoding_and_end(vocabulary)
    tokens = 0
    for batch in pq.ParquetFile(path).iter_batches(columns=["text"]):
        for text in batch.column(0).to_pylist():
            ids = [*encoding.encode_ordinary(text), end]
            tokens += len(ids)
            yield torch.tensor(ids, dtype=torch.uint16)
    (counts / f"{Path(path).stem}.count").write_text(str(tokens))


def main() -> None:
    """Optimize all files."""
    args = arguments()
    clock = Clock()
    optimize(
        functools.partial(encode, vocabulary=args.tokenizer, counts=args.output),
        inputs=[str(path) for path in args.files],
        output_dir=str(args.output / "chunks"),
        chunk_size=SEQUENCE_LENGTH * 2**14,
        item_loader=TokensLoader(SEQUENCE_LENGTH + 1),
        num_workers=args.workers,
        start_method="fork",
    )
    clock.report(sum(int(path.read_text()) for path in args.output.glob("*.count")))


if __name__ == "__main__":
    main()
