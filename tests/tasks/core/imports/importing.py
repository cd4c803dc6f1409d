"""Imports made without Prefect, and the documents that a dataset holds."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streaming_ext.dataset.reading import read_manifest
from tasks.core.imports.config import ImportConfig
from tasks.core.outputs.publish import publish
from tasks.core.planning.look import look, take_up
from tasks.core.planning.plan import remove_scratch
from tasks.core.planning.run_plan import RunPlan
from tasks.core.planning.sources import check_sources
from tasks.core.reading.records import read_records
from tasks.core.reading.whole_documents import PartOfDataset
from tasks.core.storage import Storage, open_storage
from tests.tasks.core.build_dataset import tokenize_all

Documents = list[list[int]]


def planned(
    name: str, sources: Path | str, output: Path, **options: Any
) -> tuple[RunPlan, Storage]:
    """The plan of an import, which has taken its output."""
    settings = {"sequence_length": 16, "shard_size": 1024, "workers": 1, **options}
    config = ImportConfig(format=name, sources=(str(sources),), output=str(output), **settings)
    storage = open_storage(str(output))
    files = check_sources(config.run)
    found = look(config.run, storage, files)
    storage.create()
    return take_up(found, storage, files), storage


def imported(name: str, sources: Path | str, output: Path, **options: Any) -> Path:
    """An import, whole; returns where it lies."""
    plan, storage = planned(name, sources, output, **options)
    tokenize_all(plan, storage)
    publish(plan, storage)
    remove_scratch(plan)
    return output


def documents_in(dataset: Path) -> dict[str, Documents]:
    """The documents of each split in their order, without end-of-text ids."""
    storage = open_storage(str(dataset))
    manifest, found = read_manifest(storage), {}
    records = read_records(storage)
    for split in manifest.splits:
        found[split] = [
            ids.tolist()[:-1]
            for part in sorted(records)
            for block in PartOfDataset(storage, manifest, records[part]).documents(split)
            for ids in np.split(block.stream, block.ends[:-1])
        ]
    return found


def write_ids(
    path: Path, documents: Iterable[Sequence[int]], eot: int, *, dtype: str = "<u2"
) -> Path:
    """Bare ids with an end-of-text id behind each document, as nanoGPT's are."""
    ids = [token for document in documents for token in [*document, eot]]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.array(ids, dtype).tofile(path)
    return path


def some_documents(count: int, vocabulary: int, *, seed: int = 0) -> Documents:
    """Documents of 1 to 60 ids, no two of them alike."""
    rng = np.random.default_rng(seed)
    made = (
        [*divmod(number, vocabulary), *rng.integers(0, vocabulary, rng.integers(0, 59)).tolist()]
        for number in range(count)
    )
    return [list(map(int, ids)) for ids in made]
