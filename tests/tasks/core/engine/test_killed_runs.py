"""Runs of every kind, killed anywhere, resume and publish nothing that they did not make."""

import re
import shutil
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streaming_ext.base.errors import CorruptDatasetError, TransientStorageError
from streaming_ext.format.layout import EXPORT, MANIFEST
from streaming_ext.store import LocalStorage, Storage
from tasks.core.engine import lifecycle
from tasks.core.engine.build import Build
from tests.command_line import file_hashes
from tests.tasks.core import build_dataset, running
from tests.tasks.core.check.damage import flip
from tests.tasks.core.exports import exporting
from tests.tasks.core.exports.exporting import content
from tests.tasks.core.exports.readers import READERS
from tests.tasks.core.extending import extended
from tests.tasks.core.moving import moved
from tests.tasks.core.subsets import test_annotate, test_subset, with_columns

SHUFFLE = {"shuffle": "documents", "shuffle_seed": 3}
COPIES = {"deduplicate": "exact"}
NEAR = {"deduplicate": "near"}
IN_PLACE = ("extend", "annotate")  # these change a dataset that exists
Run = Callable[[Path], object]


class KilledError(Exception):
    """Raised at the moment of a kill."""


@pytest.fixture
def runs(first, second, tmp_path) -> dict[str, Run]:
    """Functions that do each kind of run to its end, by name."""

    def shard(output: Path, **options: str) -> Path:
        sources = first.parent / "sources"
        return build_dataset.build_from(sources, output, **options)

    def extend(output: Path, **options: str) -> None:
        old = tmp_path / "old"
        if not old.exists():
            shard(old, **options)
        if not output.exists():
            shutil.copytree(old, output)
        extended.extended(output, second.parent / "sources")

    def annotate(output: Path) -> None:
        if not (tmp_path / "old").exists():
            shard(tmp_path / "old")
            documents = with_columns.documents_of(tmp_path / "old")
            test_annotate.table_of(documents, tmp_path / "table.parquet")
        if not output.exists():
            shutil.copytree(tmp_path / "old", output)
        test_annotate.annotate(output, tmp_path / "table.parquet")

    def copy_export(output: Path) -> None:
        original = tmp_path / "export"
        if not original.exists():
            exporting.exported(first, original, "megatron")
        moved.copied(original, output)

    return {
        "shard": shard,
        "shuffled": partial(shard, **SHUFFLE),
        "deduplicated": partial(shard, **COPIES),
        "near": partial(shard, **SHUFFLE, **NEAR),
        "both": partial(shard, **SHUFFLE, **COPIES),
        "extend": extend,
        "extend both": partial(extend, **SHUFFLE, **COPIES),
        "extend near": partial(extend, **NEAR),
        **{name: partial(exporting.exported, first, name=name) for name in READERS},
        "copy": lambda output: moved.copied(first, output),
        "copy of an export": copy_export,
        "merge": lambda output: moved.merged([first, second], output),
        "subset": lambda output: test_subset.subset(first, output, documents=30, seed=5),
        "subset near": lambda output: test_subset.subset(
            first, output, deduplicate="near", where="tokens >= 9"
        ),
        "annotate": annotate,
    }


@pytest.fixture
def killed(monkeypatch) -> Callable[[Run, Path, str], None]:
    """Ends a run just before it does something."""

    def kill() -> None:
        raise KilledError

    def make(run: Run, output: Path, at: str) -> None:
        finish = lifecycle.finish

        def end(build: Build, *arguments: Any) -> Build | None:
            is_reached = build.words.finish_task == at
            return kill() if is_reached else finish(build, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(lifecycle, "finish", end)
            with pytest.raises(KilledError):
                run(output)

    return make


def made(root: Path) -> dict[str, str]:
    """Return the files of a published output, which two equal runs have in common."""
    found = file_hashes(root)
    assert MANIFEST in found or EXPORT in found
    return found


def kinds_of_files(half: Path, old: Collection[str]) -> list[str]:
    """Return one file of each kind that a killed run left for the next one, from its last part.

    Args:
        half: the folder of the output and the scratch folder.
        old: the files of the dataset that is extended.
    """
    files = {}
    for folder in (half / "out", *half.glob(".out.scratch/kept")):
        for path, data in content(folder).items():
            top, *below = path.split("/")
            if not data or not below or path in old or top in {"runs", "tokenizer"}:
                continue
            if not path.startswith("runs/"):
                files[top, Path(path).suffix] = (folder / path).relative_to(half).as_posix()
    return list(files.values())


@pytest.mark.parametrize(
    ("kind", "at", "refused"),
    [
        ("shard", "publish", {"parts"}),
        ("shuffled", "arrange", {"shuffle"}),
        ("shuffled", "publish", {"parts", "shuffle"}),
        ("deduplicated", "arrange", {"shuffle"}),
        ("deduplicated", "publish", {"parts", "shuffle"}),
        ("both", "arrange", {"shuffle"}),
        ("near", "arrange", {"shuffle"}),
        ("extend near", "publish", {"parts", "shuffle"}),
        ("extend", "publish", {"parts"}),
        ("extend both", "publish", {"parts", "shuffle"}),
        ("megatron", "publish", {"export"}),
        ("parquet", "publish", {"export"}),
        ("copy", "publish", ()),
        ("copy of an export", "publish", ()),
        ("merge", "publish", ()),
        ("subset", "publish", {"parts"}),
        ("annotate", "publish", ()),
    ],
)
def test_a_flip_in_each_kind_of_file(runs, killed, kind, at, refused, tmp_path) -> None:
    """Each run is killed after the last part, of the first phase or of all."""
    run, half = runs[kind], tmp_path / "half"
    run(tmp_path / "expected")
    expected = made(tmp_path / "expected")
    half.mkdir()
    killed(run, half / "out", at)
    old = content(tmp_path / "old") if kind.startswith(IN_PLACE) else {}
    files = kinds_of_files(half, old)
    assert {path.split("/")[-2] for path in files} >= {*refused}
    for path in files:
        again = shutil.copytree(half, tmp_path / path.replace("/", "-"))
        flip(again / path)
        try:
            run(again / "out")
        except CorruptDatasetError as error:
            message = str(error)
        else:
            assert made(again / "out") == expected, path
            continue
        assert path.split("/")[-2] in refused, message
        # The message is one line and says what to do.
        assert re.fullmatch(f".*{re.escape(str(again / path))} is.*[Rr]emove.*", message)
        left = content(again / "out")
        assert (left.get(MANIFEST), left.get(EXPORT)) == (old.get(MANIFEST), None)


@pytest.mark.parametrize(
    "kind", ["shard", "shuffled", "near", "extend", "copy", "subset near", *READERS]
)
def test_a_run_that_is_killed_between_two_parts_resumes(runs, kind, tmp_path, monkeypatch) -> None:
    run, do_parts, todo = runs[kind], running.do_parts, []
    run(tmp_path / "expected")

    def one(build: Build, output: Storage, parts: Iterable[int] | None = None) -> None:
        do_parts(build, output, [build.todo[-1]])
        raise KilledError

    def noted(build: Build, output: Storage, parts: Iterable[int] | None = None) -> None:
        todo.append(build.todo)
        do_parts(build, output, parts)

    with monkeypatch.context() as patch:
        patch.setattr(running, "do_parts", one)
        with pytest.raises(KilledError):
            run(tmp_path / "out")
    left = content(tmp_path / "out")
    assert EXPORT not in left
    assert MANIFEST not in left or kind == "extend"
    monkeypatch.setattr(running, "do_parts", noted)
    run(tmp_path / "out")
    assert made(tmp_path / "out") == made(tmp_path / "expected")
    left_to_do = todo[0]
    todo.clear()
    run(tmp_path / "undisturbed")
    assert left_to_do == todo[0][:-1] != ()


@pytest.mark.parametrize("kind", [*IN_PLACE, "shard", "parquet", "copy", "merge", "subset"])
def test_a_put_of_the_manifest_that_is_answered_and_lost(runs, kind, tmp_path, monkeypatch) -> None:
    """The run does nothing after the manifest, such as removing what it needs to resume."""
    run, output = runs[kind], tmp_path / "out"
    run(tmp_path / "expected")
    before = content(tmp_path / "old") if kind in IN_PLACE else {}
    if kind in IN_PLACE:
        shutil.copytree(tmp_path / "old", output)
    put = LocalStorage.put

    def lose(self: LocalStorage, path: str, data: bytes) -> None:
        if path not in {MANIFEST, EXPORT}:
            put(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "put", lose)
        with pytest.raises(TransientStorageError, match="does not hold what was written"):
            run(output)
    left = content(output)
    assert (left.get(MANIFEST), left.get(EXPORT)) == (before.get(MANIFEST), None)
    run(output)
    assert made(output) == made(tmp_path / "expected")
