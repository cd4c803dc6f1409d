"""A small shuffled dataset, made in this process."""

from pathlib import Path
from typing import Any

import numpy as np

from streaming_ext.format.provenance import DocumentRows, read_provenance
from streaming_ext.format.reading import read_manifest, read_record
from streaming_ext.store import LocalStorage
from streaming_ext.text.listing import list_sources
from tasks.core.shard.shard_build import ShardBuild
from tests.tasks.core.build_dataset import build_from, config_of
from tests.tasks.core.running import make_plan

FILES, DOCUMENTS = 3, 30
SETTINGS: dict[str, Any] = {"shuffle": "documents", "shard_size": 2**13}


def build(sources: Path, root: Path, vocabulary: Path, **config: Any) -> Path:
    """Shuffle some sources, to the end."""
    return build_from(sources, root, tokenizer=str(vocabulary), **(SETTINGS | config))


def begin(
    sources: Path, root: Path, vocabulary: Path, **config: Any
) -> tuple[ShardBuild, LocalStorage]:
    """What a run of these sources has to do on an output, and the output."""
    made = config_of(sources, root, tokenizer=str(vocabulary), **(SETTINGS | config))
    storage = LocalStorage(root)
    storage.create()
    return make_plan(made, storage, tuple(list_sources(made.sources))), storage


def documents_of(root: Path) -> DocumentRows:
    """Where each document comes from, in the order of the dataset."""
    storage = LocalStorage(root)
    batches = [
        batch
        for part in read_manifest(storage).parts
        for batch in read_provenance(storage.read(read_record(storage, part.part).documents.path))
    ]
    names = ("rows", "splits", "tokens", "sources", "positions")
    return DocumentRows(
        *[np.concatenate([getattr(batch, name) for batch in batches]) for name in names]
    )
