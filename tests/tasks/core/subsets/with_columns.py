"""Datasets of every kind whose sources have columns, and the documents that they hold."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from streaming_ext.store import open_storage
from tasks.core.derive.config import SubsetConfig
from tasks.core.derive.subset import plan_subset
from tasks.core.reading.dataset_files import open_tokenizer, read_dataset
from tasks.core.reading.documents import PartOfDataset
from tasks.core.synthetic import make_documents
from tests.tasks.core import running
from tests.tasks.core.build_dataset import build_from, require_sound

KEPT = "score,language"
SHUFFLED = {"shuffle": "documents", "shuffle_seed": 3}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cut": {"part_size": "4KiB"},
    "shuffled": SHUFFLED,
    "exact": {"deduplicate": "exact"},
    "normalized": {**SHUFFLED, "deduplicate": "normalized"},
}


class Document(NamedTuple):
    """A document as a dataset holds it; its text is decoded from its ids."""

    source: str
    row: int
    split: str
    tokens: int
    text: str


def subset(dataset: Path, output: Path, **options: Any) -> list[Document]:
    """Make a subset, check that it is sound, and return its documents."""
    config = SubsetConfig(dataset=str(dataset), output=str(output), **options)
    running.complete(plan_subset, config)
    require_sound(output, deep=True, deep_documents=10**6)
    return documents_of(output)


def documents_of(root: Path) -> list[Document]:
    """Return every document, split by split, in the order of the parts."""
    storage = open_storage(str(root))
    files, manifest, records = read_dataset(storage)
    tokenizer, found = open_tokenizer(files, manifest.spec), []
    for split in manifest.splits:
        for record in records:
            for block in PartOfDataset(storage, manifest, record.part).documents(
                split, origins=True
            ):
                assert block.origins is not None
                begins = [0, *block.ends[:-1]]
                for begin, end, source, row in zip(
                    begins, block.ends, block.origins.sources, block.origins.rows, strict=True
                ):
                    own = block.origins.source_rows.of(int(row), int(source))
                    text = tokenizer.decode(block.stream[begin : end - 1])
                    if own.from_byte:  # parts before it are left out, so its row is not known
                        texts = pq.read_table(own.source)["text"].to_pylist()
                        own = replace(own, row=texts.index(text))
                    found.append(Document(own.source, own.row, split, int(end - begin) - 1, text))
    return found


def write(file: Path, seed: int) -> None:
    """Write a source with copies, empty texts, and scores that may be missing or NaN."""
    texts: list[str | None] = [
        text[: 40 + 9 * row] for row, text in enumerate(make_documents(40, seed=seed))
    ]
    texts[5], texts[6], texts[10], texts[30] = "", None, texts[8], "The same text everywhere."
    scores = [row % 7 / 2 if row % 11 else (math.nan if row % 2 else None) for row in range(40)]
    languages = [("de", "en", None)[row % 3] for row in range(40)]
    table = pa.table({"text": texts, "score": scores, "language": languages})
    pq.write_table(table, file, row_group_size=7)


def made(folder: Path, *seeds: int, **config: Any) -> Path:
    """Make a dataset of one source per seed, columns kept; the sources lie beside it."""
    (folder / "sources").mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        write(folder / f"sources/{number}.parquet", seed)
    settings = {"keep_columns": KEPT, **config}
    return build_from(folder / "sources", folder / "dataset", **settings)
