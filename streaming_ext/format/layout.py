"""Paths of the files of a dataset, relative to its root: docs/reference/dataset-format.md."""

from typing import Literal, get_args

from streaming_ext.store.locations import LOCK_FOLDER

Split = Literal["train", "holdout"]
SPLITS: tuple[Split, ...] = get_args(Split)

MANIFEST = "manifest.json"
EXPORT = "export.json"  # of an export, instead of a manifest
PARTS_FOLDER = "parts"
DOCUMENTS_FOLDER = "documents"
DUPLICATES_FOLDER = "duplicates"
COLUMNS_FOLDER = "columns"  # that were added to the documents of a published dataset
DIGESTS_FOLDER = "digests"  # of the texts of a dataset without copies, for what extends it
SHUFFLE_FOLDER = "shuffle"  # work in progress of a run of two phases, removed when it is published
RUNS_FOLDER = LOCK_FOLDER  # all that may differ between two runs
TOKENIZER_FOLDER = "tokenizer"
GENERATIONS_FOLDER = "generations"  # manifests that an extension replaced
BUILD = f"{RUNS_FOLDER}/.build.json"  # what is being built; removed when it is complete
# What lies in the folder of a dataset.
MADE = {
    *SPLITS,
    PARTS_FOLDER,
    DOCUMENTS_FOLDER,
    COLUMNS_FOLDER,
    DUPLICATES_FOLDER,
    DIGESTS_FOLDER,
    SHUFFLE_FOLDER,
    RUNS_FOLDER,
    TOKENIZER_FOLDER,
    GENERATIONS_FOLDER,
    MANIFEST,
}


def index_path(split: Split) -> str:
    """The merged index of a split."""
    return f"{split}/index.json"


def kept_index_path(split: Split, content: str) -> str:
    """The same of one generation of an extended dataset, which no later one overwrites.

    Args:
        split: a split of the dataset.
        content: hash of the index.
    """
    return f"{split}/index-{content}.json"


def generation_path(content: str) -> str:
    """The manifest, of some content hash, of an older generation of an extended dataset."""
    return f"{GENERATIONS_FOLDER}/{content}.json"


def record_path(part: int) -> str:
    """The record whose existence makes a part count."""
    return f"{PARTS_FOLDER}/{part:05}.json"


def columns_path(table: str, part: int) -> str:
    """The values that a table added to the documents of a part.

    Args:
        table: the hash that names the table.
        part: the number of the part.
    """
    return f"{COLUMNS_FOLDER}/{table}/{part:05}.parquet"


def documents_path(part: int) -> str:
    """The provenance of a part's documents."""
    return f"{DOCUMENTS_FOLDER}/{part:05}.parquet"
