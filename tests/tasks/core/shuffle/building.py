"""Small datasets with two phases, made in this process."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streaming_ext.format.layout import documents_path
from streaming_ext.store import LocalStorage
from tasks.core.shard.shard_build import ShardBuild
from tests.tasks.core.build_dataset import build_from, config_of, manifest_of
from tests.tasks.core.running import make_plan

FILES, DOCUMENTS = 3, 30
SETTINGS: dict[str, Any] = {"shuffle": "documents", "shard_size": 2**13}
KINDS: dict[str, dict[str, Any]] = {
    "in order": {"deduplicate": "exact"},
    "shuffled": {"deduplicate": "exact", **SETTINGS},
    "shuffled with copies": SETTINGS,
}


@dataclass(frozen=True)
class Builder:
    """Makes datasets of some sources in a folder; each call may change settings."""

    sources: Path
    folder: Path
    settings: dict[str, Any]

    def build(self, name: str | Path = "out", **changes: Any) -> Path:
        """Make a dataset to the end."""
        return build_from(self.sources, self.folder / name, **(self.settings | changes))

    def begin(self, name: str | Path = "out", **changes: Any) -> tuple[ShardBuild, LocalStorage]:
        """Return a run's plan on an output, and the output."""
        made = config_of(self.sources, self.folder / name, **(self.settings | changes))
        storage = LocalStorage(Path(made.output))
        storage.create()
        return make_plan(made, storage), storage


def documents_of(root: Path) -> list[np.ndarray]:
    """Return row, source and place in the source of each document, in the order of the dataset."""
    parts = manifest_of(root).parts
    found = pa.concat_tables(pq.read_table(root / documents_path(each.part)) for each in parts)
    columns = [found["row"], found["source"], pc.coalesce(found["place"], found["row"])]
    return [column.to_numpy().astype(np.int64) for column in columns]
