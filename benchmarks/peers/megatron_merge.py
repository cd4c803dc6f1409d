"""Megatron-LM's merge_datasets.py, in its steps: `add_index` for each set, then `finalize`."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder


def main() -> None:
    """Merge the sets; prints the seconds that it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prefixes", nargs="+")
    parser.add_argument("--output", type=Path, required=True, help="prefix of the files")
    args = parser.parse_args()
    began = time.monotonic()
    builder = None
    for prefix in args.prefixes:
        if builder is None:
            dtype = IndexedDataset(prefix).index.dtype
            builder = IndexedDatasetBuilder(f"{args.output}.bin", dtype=dtype)
        builder.add_index(prefix)
    builder.finalize(f"{args.output}.idx")
    print(json.dumps({"seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
