"""Where each file of a dataset lies, as paths relative to its root; see docs/format.md."""

from typing import Literal, get_args

Split = Literal["train", "holdout"]
SPLITS: tuple[Split, ...] = get_args(Split)

MANIFEST = "manifest.json"
PARTS_FOLDER = "parts"
DOCUMENTS_FOLDER = "documents"
RUNS_FOLDER = "runs"  # all that may differ between two runs
TOKENIZER_FOLDER = "tokenizer"


def index_path(split: Split) -> str:
    """The merged MDS index of a split."""
    return f"{split}/index.json"


def part_folder(split: Split, part: int) -> str:
    """The folder that holds a part's shards of a split, and nothing else."""
    return f"{split}/{part:05}"


def record_path(part: int) -> str:
    """The record whose existence makes a part count."""
    return f"{PARTS_FOLDER}/{part:05}.json"


def documents_path(part: int) -> str:
    """The provenance of a part's documents."""
    return f"{DOCUMENTS_FOLDER}/{part:05}.parquet"
