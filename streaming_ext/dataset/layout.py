"""Where each file of a dataset lies, as paths relative to its root; see docs/format.md."""

import re
from typing import Final, Literal, get_args

Split = Literal["train", "holdout"]
SPLITS: tuple[Split, ...] = get_args(Split)

MANIFEST = "manifest.json"
EXPORT = "export.json"  # what an export has in its place
PARTS_FOLDER = "parts"
DOCUMENTS_FOLDER = "documents"
DUPLICATES_FOLDER = "duplicates"
DIGESTS_FOLDER = "digests"  # of the texts of a dataset without copies, for what extends it
SHUFFLE_FOLDER = "shuffle"  # work in progress of a run of two stages, gone when it is published
RUNS_FOLDER = "runs"  # all that may differ between two runs
TOKENIZER_FOLDER = "tokenizer"
GENERATIONS_FOLDER = "generations"  # manifests that an extension replaced
SCRATCH_MARK = ".shardmill-scratch"  # in folders for work in progress, never in a dataset
EXTENDING = "extending.json"  # while an extension is under way: of what, and from which sources


def index_path(split: Split) -> str:
    """The merged index of a split."""
    return f"{split}/index.json"


def kept_index_path(split: Split, content: str) -> str:
    """The same of one generation of an extended dataset, which no later one overwrites.

    Args:
        split: of the dataset.
        content: hash of the index.
    """
    return f"{split}/index-{content}.json"


def generation_path(content: str) -> str:
    """The manifest, of some content hash, of an older generation of an extended dataset."""
    return f"{GENERATIONS_FOLDER}/{content}.json"


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
    rf"(?:{'|'.join(SPLITS)})/(?:\d{{5,}}/[^/]+|index(?:-[0-9a-f]{{32}})?\.json)|{DOCUMENTS_FOLDER}/(?:\d{{5,}}|sources(?:-[0-9a-f]{{32}})?)\.parquet|{MANIFEST}"
    rf"|{GENERATIONS_FOLDER}/[0-9a-f]{{32}}\.json"
    rf"|{DUPLICATES_FOLDER}/\d{{5,}}\.parquet|{DIGESTS_FOLDER}/\d{{5,}}/\d{{5,}}\.parquet|{SHUFFLE_FOLDER}/[^/]+"
    # of an export
    rf"|(?:{'|'.join(SPLITS)})/(?:\d{{5,}}[-._][^/]+|part-\d{{5,}}\.[^/]+|chunk-\d+-\d+\.bin"
    rf"|(?:{'|'.join(SPLITS)})-\d{{6,}}\.tar|text_document\.bin|input_ids/.+)"
    r"|(?:train|val)\.bin|[a-z]+_(?:train|val)_\d{6,}\.bin"
)


def may_be_large(path: str) -> bool:
    """Whether a path is that of a file, of a dataset or an export, that may go in pieces."""
    return _LARGE.fullmatch(path) is not None
