"""Paths of the files of a dataset, relative to its root: docs/reference/dataset-format.md."""

from typing import Literal, get_args

from streaming_ext.store.locations import LOCK_FOLDER

Split = Literal["train", "holdout"]
SPLITS: tuple[Split, ...] = get_args(Split)

MANIFEST = "manifest.json"
EXPORT = "export.json"  # an export has it instead of a manifest
PARTS_FOLDER = "parts"
DOCUMENTS_FOLDER = "documents"
DUPLICATES_FOLDER = "duplicates"
COLUMNS_FOLDER = "columns"  # columns added to the documents of a published dataset
DIGESTS_FOLDER = "digests"  # hashes of the texts of a dataset without copies, for extensions
SHUFFLE_FOLDER = "shuffle"  # work in progress of a run of two phases, removed when it is published
RUNS_FOLDER = LOCK_FOLDER  # holds everything that may differ between two runs
TOKENIZER_FOLDER = "tokenizer"
GENERATIONS_FOLDER = "generations"  # manifests that an extension replaced
BUILD = f"{RUNS_FOLDER}/.build.json"  # what is being built; removed when it is complete
# The files and folders of a dataset.
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
    """Return the path of the merged index of a split."""
    return f"{split}/index.json"


def kept_index_path(split: Split, content: str) -> str:
    """Return the path of the index of one generation of a split; later ones do not overwrite it.

    Args:
        split: a split of the dataset.
        content: hash of the index.
    """
    return f"{split}/index-{content}.json"


def generation_path(content: str) -> str:
    """Return the path of the manifest of an older generation, by its content hash."""
    return f"{GENERATIONS_FOLDER}/{content}.json"


def record_path(part: int) -> str:
    """Return the path of the record of a part; a part counts if its record exists."""
    return f"{PARTS_FOLDER}/{part:05}.json"


def columns_path(table: str, part: int) -> str:
    """Return the path of the values that a table added to the documents of a part.

    Args:
        table: the hash that names the table.
        part: the number of the part.
    """
    return f"{COLUMNS_FOLDER}/{table}/{part:05}.parquet"


def documents_path(part: int) -> str:
    """Return the path of the list of a part's documents."""
    return f"{DOCUMENTS_FOLDER}/{part:05}.parquet"
