"""dolma: `dolma tokens` over JSON Lines, which are made from the Parquet files beforehand."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from contract import END, Clock, arguments


def main() -> None:
    """Convert (not timed), then tokenize."""
    args = arguments()
    config = json.loads(args.tokenizer.read_text())
    end = next(token["id"] for token in config["added_tokens"] if token["content"] == END)
    pairs = config["model"]["merges"]  # its `tokenizers` reads "a b" only, not ["a", "b"]
    config["model"]["merges"] = [p if isinstance(p, str) else " ".join(p) for p in pairs]
    tokenizer = args.output / "tokenizer.json"
    tokenizer.write_text(json.dumps(config))
    for path in args.files:
        with gzip.open(args.output / f"{path.stem}.jsonl.gz", "wt", compresslevel=1) as out:
            for row, text in enumerate(pq.read_table(path, columns=["text"])["text"].to_pylist()):
                out.write(json.dumps({"id": str(row), "text": text}) + "\n")
    clock = Clock()
    subprocess.run(
        [
            *(Path(sys.executable).parent / "dolma", "tokens"),
            *("--documents", args.output / "*.jsonl.gz"),
            *("--destination", args.output / "tokens"),
            *("--tokenizer.name_or_path", tokenizer),
            *("--tokenizer.eos_token_id", str(end), "--tokenizer.pad_token_id", str(end)),
            *("--tokenizer.encode_special_tokens", "--dtype", "uint16"),
            *("--processes", str(args.workers), "--ring_size", "1", "--files_per_process", "1"),
        ],
        check=True,
    )
    files = args.output.glob("tokens/*.npy")
    clock.report(sum(path.stat().st_size // np.dtype(np.uint16).itemsize for path in files))


if __name__ == "__main__":
    main()
