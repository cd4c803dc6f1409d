"""Where each file of a dataset lies, as paths relative to its root; see docs/format.md."""

import re
from typing import Final, Literal, get_args

Split = Literal["train", "holdout"]
SPLITS: tuple[Split, ...] = get_args(Split)

MANIFEST = "manifest.json"
PARTS_FOLDER = "parts"
DOCUMENTS_FOLDER = "documents"
DUPLICATES_FOLDER = "duplicates"
SHUFFLE_FOLDER = "shuffle"  # work in progress of a run of two stages, gone when it is published
RUNS_FOLDER = "runs"  # all that may differ between two runs
TOKENIZER_FOLDER = "tokenizer"


def index_path(split: Split) -> str:
    """The merged index of a split."""
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


_LARGE: Final = re.compile(
    rf"(?:{'|'.join(SPLITS)})/(?:\d{{5,}}/[^/]+|index\.json)|{DOCUMENTS_FOLDER}/(?:\d{{5,}}|sources)\.parquet|{MANIFEST}"
    rf"|{DUPLICATES_FOLDER}/\d{{5,}}\.parquet|{SHUFFLE_FOLDER}/[^/]+"
)


def may_be_large(path: str) -> bool:
    """Whether a path is that of a file of a dataset that may have to be uploaded in pieces."""
    return _LARGE.fullmatch(path) is not None
