"""Exports made without Prefect, and the documents of a dataset as its maker knows them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streaming_ext.store import LocalStorage
from tasks.core.check.export import verify_export
from tasks.core.check.findings import Report
from tasks.core.derive.config import ExportConfig
from tasks.core.derive.export import ExportBuild, plan_export
from tests.streaming_ext.build import EOT, Built, build
from tests.tasks.core import running

Split = str
Documents = dict[Split, list[list[int]]]

# Documents of one token, of more than a shard, and at the very end of a shard; a part that holds
# no document of a split.
PARTS = [
    [("train", [1, 2, 3]), ("holdout", [4]), ("train", [5] * 7), ("train", list(range(90)))],
    [("train", [6]), ("train", [7, 8])],
    [("holdout", list(range(10, 50))), ("train", [9] * 31), ("holdout", [3])],
]


def documents_of(parts: Iterable[Iterable[tuple[Split, Any]]] = PARTS, eot: int = EOT) -> Documents:
    """Return the documents of each split, each with an end-of-text id after it."""
    found: Documents = {"train": [], "holdout": []}
    for part in parts:
        for split, ids in part:
            found[split].append([*ids, eot])
    return found


def make_dataset(folder: Path, **settings: Any) -> Built:
    """Make a dataset of these documents in small shards."""
    return build(folder / "dataset", PARTS, **settings)


def config_of(dataset: Path | str, output: Path | str, name: str, **options: Any) -> ExportConfig:
    return ExportConfig(format=name, dataset=str(dataset), output=str(output), **options)


def planned(dataset: Path | str, output: Path | str, name: str, **options: Any) -> ExportBuild:
    """Plan an export; from then on, the output says what it is going to be."""
    return running.planned(plan_export, config_of(dataset, output, name, **options))[0]


def exported(dataset: Path | str, output: Path | str, name: str, **options: Any) -> Path:
    """Make a complete export and return its folder."""
    running.complete(plan_export, config_of(dataset, output, name, **options))
    return Path(output)


def checked(root: Path) -> Report:
    """Return what `verify` reports of an export."""
    return verify_export(LocalStorage(root))


def content(root: Path) -> dict[str, bytes]:
    """Return every file of an export."""
    files = [file for file in root.rglob("*") if file.is_file()]
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in sorted(files)}


def open_files(folder: Path) -> list[str]:
    """Return the files below a folder that this process holds open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [path for link in links if (path := str(link.readlink())).startswith(str(folder))]
