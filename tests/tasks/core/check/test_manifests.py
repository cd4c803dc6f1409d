"""`verify` compares a manifest with everything that it was made from, and names any change."""

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streaming_ext.base.errors import CorruptDatasetError, NewerVersionError
from streaming_ext.format.layout import EXPORT, MANIFEST
from streaming_ext.store import LocalStorage
from tasks.core.check.findings import Outcome
from tasks.core.check.manifest import open_checked
from tasks.core.derive.formats import FORMATS
from tasks.core.reading.dataset_files import DatasetFiles
from tests.tasks.core.build_dataset import as_written, build_from, require_sound
from tests.tasks.core.check.damage import check
from tests.tasks.core.exports.exporting import checked, exported
from tests.tasks.core.extending.extended import extended
from tests.tasks.core.imports.importing import imported, write_ids
from tests.tasks.core.moving.moved import merged
from tests.tasks.core.subsets.test_subset import subset

BOTH = {"shuffle": "documents", "deduplicate": "exact", "on_bad_document": "skip"}
KEPT = {"keep_columns": ("score",), "min_tokens": 2, "on_bad_document": "skip"}


def lines(folder: Path, first: int, count: int = 12) -> Path:
    """Write a file of JSON lines: documents, a copy, one without text, a bad one."""
    made = [
        json.dumps({"text": f"Document {first + n} of some words.", "score": n})
        for n in range(count)
    ]
    folder.mkdir(exist_ok=True)
    path = folder / f"{first:03}.jsonl"
    path.write_text("\n".join([*made, made[0], '{"text": ""}', '{"text": 5}']) + "\n")
    return path


class Makers:
    """Makes datasets of each kind in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder

    def _shard(self, first: int, **settings: Any) -> Path:
        sources = self._folder / f"sources{first}"
        for number in range(2):
            lines(sources, first + 20 * number)
        options = {"shard_size": 2**12, "sequence_length": 16, **settings}
        return build_from(sources, self._folder / f"made{first}", **options)

    def _more(self, dataset: Path, **settings: Any) -> Path:
        for first in (200, 300):
            extended(dataset, lines(self._folder / f"more{first}", first), **settings)
        return dataset

    def shard(self) -> Path:
        return self._shard(0, **KEPT)

    def grown(self) -> Path:
        return self._more(self._shard(0, **KEPT))

    def grown_both(self) -> Path:
        return self._more(self._shard(0, **BOTH))

    def imported(self) -> Path:
        for number in range(2):
            write_ids(self._folder / "in" / f"{number}.bin", [[5, 6, 7]] * 9)
        return imported("nanogpt", self._folder / "in", self._folder / "out", holdout_fraction=0.3)

    def merged(self) -> Path:
        output = self._folder / "merged"
        merged([self.grown(), self._shard(100, **KEPT), self._shard(140, **KEPT)], output)
        return output

    def subset(self) -> Path:
        subset(self.shard(), self._folder / "subset", documents=9, seed=3)
        return self._folder / "subset"

    def subset_of_merged(self) -> Path:
        subset(self.merged(), self._folder / "subset", documents=60)
        return self._folder / "subset"

    def merged_subsets(self) -> Path:
        first, second = self._shard(0, **KEPT), self._shard(100, **KEPT)
        subset(first, self._folder / "few", documents=5)
        merged([self._folder / "few", second], self._folder / "merged")
        return self._folder / "merged"


DATASETS = [name for name in vars(Makers) if not name.startswith("_")]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each value of a manifest: its path, its container, and its key in that."""
    for key, own in [*value.items()] if isinstance(value, dict) else enumerate(value):
        where = f"{path}.{key}" if path else str(key)
        yield where, value, key
        if isinstance(own, dict | list):
            yield from leaves(own, where)


def changes(value: Any) -> list[Any]:
    """Return other values of the same type."""
    if isinstance(value, str):
        return [value[:-1] + ("0" if value[-1:] != "0" else "1")]
    if isinstance(value, list):
        return [value[:-1], [*value, *value[-1:]], value[::-1]]
    if isinstance(value, dict):
        return [dict([*value.items()][:-1])]
    return [not value] if isinstance(value, bool) else [value + 1]


def forgeries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the manifest with one value changed, as it would be written, or with one byte changed.

    Only one of the values with corresponding paths, such as those of all parts, is changed.
    """
    value, taken = json.loads(data), Counter[str]()
    for path, holder, key in leaves(value):
        place = re.sub(r"\b\d+\b", "*", path)
        taken[place] += 1
        held = holder[key]
        for change in changes(held) if taken[place] == 1 else ():
            holder[key] = change
            if (forged := as_written(value)) != data:
                yield f"{path}: {held!r:.40} -> {change!r:.40}", forged
        holder[key] = held
    yield "a byte more", data + b"\n"
    yield "a byte less", data[:-1]
    draw = random.Random(7)
    for at in draw.sample(range(len(data)), 20):
        yield f"byte {at}", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def known(data: bytes) -> Any:
    """Return what a manifest says that another file says too.

    Only the manifest holds the bad documents of a shuffled dataset, and the source of a subset.
    """
    value = json.loads(data)
    value.get("shuffled", {}).pop("bad_listed", None)
    for each in value.get("merged", []):
        if "subset" in each["spec"]:
            del each["manifest"], each["parts"]
    return value


def is_named(root: Path) -> bool:
    """Return whether `verify` finds something; the metadata comes first, as that is faster."""
    storage, out = LocalStorage(root), Outcome()
    open_checked(DatasetFiles(storage, storage.list()), out)
    return bool(out.findings) or not check(root, workers=1).sound


@pytest.mark.parametrize("kind", DATASETS)
def test_of_a_dataset(kind, tmp_path) -> None:
    root = getattr(Makers(tmp_path / "made"), kind)()
    require_sound(root, workers=1)
    data, missed, count = (root / MANIFEST).read_bytes(), [], 0
    for words, forged in forgeries(data):
        (root / MANIFEST).write_bytes(forged)
        count += 1
        with suppress(NewerVersionError):
            if not is_named(root) and (known(forged) != known(data) or "a byte" in words):
                missed.append(words)
    assert count > 60
    assert not missed, "\n".join(missed)


def test_a_finding_names_the_field(tmp_path) -> None:
    root = Makers(tmp_path / "made").merged()
    value = json.loads((root / MANIFEST).read_bytes())
    value["spec"]["holdout_fraction"] = 0.25
    value["parts"][1]["rows"] += 1
    (root / MANIFEST).write_bytes(as_written(value))
    words = [finding.problem for finding in check(root).findings]
    assert words == [
        "spec.holdout_fraction is 0.25, made again 0.2; parts[1].rows is 16, made again 15"
    ]


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"modded-nanogpt"}))
def test_of_an_export(name, tmp_path) -> None:
    dataset = Makers(tmp_path / "made").shard()
    root = exported(dataset, tmp_path / "out", name)
    assert (checked(root).findings, checked(root).not_compared) == ((), "")
    data, missed = (root / EXPORT).read_bytes(), []
    for words, forged in forgeries(data):
        (root / EXPORT).write_bytes(forged)
        with suppress(CorruptDatasetError, NewerVersionError):
            report = checked(root)
            # Two things cannot be known: versions of libraries, and where the dataset was.
            if report.sound and not report.not_compared:
                missed.append(words)
    assert not missed, "\n".join(missed)


def test_an_export_whose_dataset_is_gone_agrees_with_its_records(tmp_path) -> None:
    dataset = Makers(tmp_path / "made").shard()
    root = exported(dataset, tmp_path / "out", "nanogpt")
    shutil.rmtree(dataset)
    assert checked(root).sound
    value = json.loads((root / EXPORT).read_bytes())
    value["splits"]["train"]["documents"] += 1
    (root / EXPORT).write_bytes(as_written(value))
    (finding,) = checked(root).findings
    assert str(finding) == "export.json: its splits hold 27 documents, its records 26"
