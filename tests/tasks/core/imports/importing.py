"""Imports made without Prefect, and the documents that a dataset holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streaming_ext.format.spec import TokenSetName
from streaming_ext.store import Storage
from tasks.core.config import ImportConfig
from tasks.core.shard.plan import plan_import
from tasks.core.shard.shard_build import ShardBuild
from tests.conftest import small_vocabulary
from tests.tasks.core import running
from tests.tasks.core.build_dataset import Forger
from tests.tasks.core.exports.exporting import exported

Documents = list[list[int]]
EOT = 1024  # the id of the small vocabulary


@dataclass(frozen=True)
class Case:
    """A format, the options of its export, and those of its import."""

    name: TokenSetName
    export: str | None  # the dataset itself is a set of MDS
    written: dict[str, Any] = field(default_factory=dict)
    read: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.name, *map(str, self.written.values())])

    def made(self, dataset: Path, folder: Path) -> Path:
        """Return what is imported: an export of a dataset."""
        if self.export is None:
            return dataset
        return exported(dataset, folder / "export", self.export, **self.written)


CUT = {"part_size": 1100}
OWN = {"holdout_fraction": 0.25, "holdout_seed": 7}  # options of most of these imports
CASES = [
    Case("megatron", "megatron", read=CUT),
    Case("megatron", "megatron", {"max_file_size": 2048}),
    Case("olmo", "olmo"),
    Case("nanogpt", "nanogpt", read=CUT),
    Case("llmc", "llmc", {"max_file_size": 2048}, CUT),
    Case("mds", None),
]


def planned(
    name: str, sources: Path | str, output: Path, **options: Any
) -> tuple[ShardBuild, Storage]:
    """Plan an import, which takes its output; the small vocabulary is the default."""
    settings = {
        "tokenizer": str(small_vocabulary()),
        "pattern": "gpt2",
        "sequence_length": 16,
        "shard_size": 1024,
        "workers": 1,
        **options,
    }
    config = ImportConfig(format=name, sources=(str(sources),), output=str(output), **settings)
    return running.planned(plan_import, config)


def imported(name: str, sources: Path | str, output: Path, **options: Any) -> Path:
    """Make a complete import and return its folder."""
    running.finish(*planned(name, sources, output, **options))
    return output


def documents_in(dataset: Path) -> dict[str, Documents]:
    """Return the documents of each split in their order, without end-of-text ids."""
    made = Forger(dataset)
    found: dict[str, Documents] = {}
    for part in made.records:
        for _, split, ids in made.listed(part):
            found.setdefault(split, []).append(ids.tolist())
    return found


def write_ids(path: Path, documents: Iterable[Sequence[int]], *, dtype: str = "<u2") -> Path:
    """Write bare ids with an end-of-text id after each document, as nanoGPT does."""
    ids = [token for document in documents for token in [*document, EOT]]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.array(ids, dtype).tofile(path)
    return path


def change_index(folder: Path) -> None:
    """Make the index of a Megatron export say that its first document begins where it ends."""
    index = folder / "train/text_document.idx"
    data = np.fromfile(index, np.uint8)
    sequences = int(np.fromfile(index, "<u8", 1, offset=18)[0])
    data[34 + 12 * sequences :].view("<i8")[1] = 0
    data.tofile(index)
