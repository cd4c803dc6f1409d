"""A small shuffled dataset, made in this process."""

from pathlib import Path
from typing import Any

import numpy as np

from streaming_ext.format.provenance import DocumentRows, read_provenance
from streaming_ext.format.reading import read_manifest, read_record
from streaming_ext.format.schema import content_hash
from streaming_ext.store import LocalStorage
from streaming_ext.text.listing import list_sources
from tasks.core.config import ShardConfig
from tasks.core.shard.shard_build import ShardBuild
from tests.tasks.core.build_dataset import build_from
from tests.tasks.core.running import make_plan

FILES, DOCUMENTS = 3, 30
SETTINGS: dict[str, Any] = {"shuffle": "documents", "shard_size": 2**13}


def build(sources: Path, root: Path, vocabulary: Path, **config: object) -> Path:
    """Shuffle some sources, to the end."""
    return build_from(sources, root, tokenizer=str(vocabulary), **(SETTINGS | config))


def hash_of(root: Path) -> dict[str, str]:
    """The hash of each file of a dataset."""
    return {
        file.relative_to(root).as_posix(): content_hash(file.read_bytes())
        for file in sorted(root.rglob("*"))
        if file.is_file() and not file.is_relative_to(root / "runs")
    }


def documents_of(root: Path) -> DocumentRows:
    """Where each document comes from, in the order of the dataset."""
    manifest = read_manifest(LocalStorage(root))
    batches = [
        batch
        for part in manifest.parts
        for batch in read_provenance(
            (root / read_record(LocalStorage(root), part.part).documents.path).read_bytes()
        )
    ]
    return DocumentRows(
        *[
            np.concatenate([getattr(batch, name) for batch in batches])
            for name in ("rows", "splits", "tokens", "sources", "positions")
        ]
    )


def begin(
    lines: Path, root: Path, vocabulary: Path, **config: object
) -> tuple[ShardBuild, LocalStorage]:
    """What a run of these sources has to do on an output, and the output."""
    settings = {
        "pattern": "gpt2", "sequence_length": 64, "holdout_fraction": 0.2,
        "engine": "reference", "workers": 1, **SETTINGS, **config,
    }  # fmt: skip
    made = ShardConfig(
        sources=(str(lines),), output=str(root), tokenizer=str(vocabulary), **settings
    )
    storage = LocalStorage(root)
    storage.create()
    sources = tuple(list_sources(made.sources))
    return make_plan(made, storage, sources), storage
