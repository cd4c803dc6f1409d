"""Extensions of plain, shuffled and deduplicated datasets, also killed."""

import random
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.terminal.show_checks import show_dataset
from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.store import LocalStorage, Storage
from tasks.core.check.inspect import describe
from tasks.core.hosts.cluster import partition_plan, put_shared_plan, read_plan
from tasks.core.shard.shard_build import ShardBuild
from tasks.core.shuffle import copies
from tests.command_line import file_hashes
from tests.streaming_ext.order.test_grown import opened, steps
from tests.tasks.core.build_dataset import build_from, found_in, manifest_of, require_sound
from tests.tasks.core.check.damage import flip, printed
from tests.tasks.core.deduplicate.conftest import DOCUMENTS, write_copies
from tests.tasks.core.deduplicate.test_deduplicate import expected, kept_and_left_out
from tests.tasks.core.extending.extended import extended, planned
from tests.tasks.core.running import do_parts, publish, second_phase

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shuffled": {"shuffle": "documents", "shuffle_seed": 3},
    "exact": {"deduplicate": "exact"},
    "both": {"shuffle": "documents", "shuffle_seed": 3, "deduplicate": "exact"},
    "normalized": {"shuffle": "documents", "shuffle_seed": 3, "deduplicate": "normalized"},
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> Path:
    return write_copies(tmp_path_factory.mktemp("lines"), 5)


def made(lines: Path, folder: Path, settings: dict[str, Any]) -> Path:
    """Make a dataset of the first two files."""
    folder.mkdir()
    for number in range(2):
        shutil.copy(lines / f"{number}.jsonl", folder)
    options = {"shard_size": 2**12, "sequence_length": 16, **settings}
    return build_from(folder, folder.parent / f"{folder.name}-out", **options)


@pytest.fixture(scope="module")
def originals(lines, tmp_path_factory) -> Callable[[str], Path]:
    """Makes the dataset of each kind, once; its sources lie beside it."""

    @cache
    def original(kind: str) -> Path:
        return made(lines, tmp_path_factory.mktemp(kind) / "sources", KINDS[kind])

    return original


@pytest.fixture(params=["exact", "both"])
def kind(request) -> str:
    found: str = request.param
    return found


@pytest.fixture
def old(originals, tmp_path, kind) -> Path:
    return shutil.copytree(originals(kind), tmp_path / "old")


ALL_KINDS = pytest.mark.parametrize("kind", KINDS, indirect=True)
BOTH = pytest.mark.parametrize("kind", ["both"], indirect=True)


@ALL_KINDS
def test_two_generations_more(old, lines, kind) -> None:
    """The documents kept and left out are those that a dictionary of all texts in order gives."""
    settings = KINDS[kind]
    before = file_hashes(old)
    hashes = [before["manifest.json"]]
    cut = {"part_size": 2000} if "shuffle" in settings else {}
    extended(old, lines / "2.jsonl", **cut)
    hashes.append(file_hashes(old)["manifest.json"])
    extended(old, lines / "3.jsonl", lines / "4.jsonl")
    after, manifest = file_hashes(old), manifest_of(old)
    changed = {path for path in before if after.get(path) != before[path]}
    assert changed == {"manifest.json", "train/index.json", "holdout/index.json"}
    assert [each.manifest.xxh128 for each in manifest.generations] == hashes
    assert [after[f"generations/{each}.json"] for each in hashes] == hashes
    for split in manifest.splits:
        kept_index = before[f"{split}/index.json"]
        assert after[f"{split}/index-{kept_index}.json"] == kept_index
    if "deduplicate" in settings:
        kept, left_out = kept_and_left_out(old)
        assert (kept, left_out) == expected(lines, settings["deduplicate"])
        assert any(own[0] > "1.jsonl" >= first[0] for own, first in left_out.items())
        assert sum(each.documents for each in manifest.digests) == len(kept)
    else:
        assert sum(split.documents for split in manifest.splits.values()) == 5 * DOCUMENTS
    require_sound(old, deep=True)
    for each in hashes:
        require_sound(old, generation=each[:8], deep=True)
    again = [lines / f"{number}.jsonl" for number in (2, 3, 4)]
    assert extended(old, *again).published  # nothing new
    sizes = [opened(old, generation=each).dataset.size for each in (*hashes, None)]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("kind", ["shuffled"], indirect=True)
def test_each_generation_is_a_permutation_of_its_own(old, lines) -> None:
    """The keys of each ascend, or `verify` would find it."""
    orders = []
    for source, file in ((2, "2.jsonl"), (3, "3.jsonl")):
        first = len(manifest_of(old).parts)
        extended(old, lines / file)
        require_sound(old)
        orders.append([])
        for part in range(first, len(manifest_of(old).parts)):
            table = pq.read_table(old / f"documents/{part:05}.parquet")
            assert {*table["source"].to_pylist()} == {source}
            orders[-1] += table["row"].to_pylist()
    assert sorted(orders[0]) == sorted(orders[1])  # the files are alike, yet in another order
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])
    flip(old / "documents/sources.parquet")  # the file of the first generation
    assert found_in(old) == ["documents/sources.parquet"]


def test_hashes_a_range_at_a_time(lines, tmp_path, monkeypatch) -> None:
    """The ranges have another width in each generation: the same documents are left out."""
    widths = iter([12, 90, 3])
    root = None
    for files in (["0.jsonl"], ["2.jsonl"], ["3.jsonl", "4.jsonl"]):
        monkeypatch.setattr(copies, "RANGE_DOCUMENTS", next(widths))
        if root is None:
            root = made(lines, tmp_path / "sources", KINDS["both"])
        else:
            extended(root, *(lines / file for file in files))
    assert root is not None
    counts = [len(each.files) for each in manifest_of(root).digests]
    assert counts[0] > 1
    assert len(set(counts)) == 3
    assert kept_and_left_out(root) == expected(lines, "exact")
    require_sound(root, deep=True)


@pytest.mark.parametrize("kind", ["shuffled", "both"], indirect=True)
def test_nothing_but_copies(old, lines, tmp_path, kind) -> None:
    """An extension that adds no document is a generation too: it lists its sources."""
    again = shutil.copy(lines / "1.jsonl", tmp_path / "again.jsonl")
    tokens = manifest_of(old).tokens
    extended(old, again)
    now = manifest_of(old)
    assert len(now.generations) == 1
    assert (now.tokens == tokens) == ("deduplicate" in KINDS[kind])
    require_sound(old, deep=True)


@BOTH
def test_added_documents_are_shown(old, lines, tmp_path) -> None:
    """The pass of training that grew traces them, and `inspect` shows them."""
    before = shutil.copytree(old, tmp_path / "before")
    extended(old, lines / "2.jsonl")
    _, state = steps(opened(before), 3)
    loader = opened(old)
    loader.load_state_dict(state, extend_state=True)
    (visit, *_) = loader.trace_document(str(lines / "2.jsonl"), 1)
    held = [(each.rank, each.sequence) for each in loader.trace(visit.step)]
    assert (visit.rank, visit.sequence) in held
    found = [span for each in loader.trace(visit.step) for span in each.spans]
    assert (str(lines / "2.jsonl"), 1) in {(span.source, span.row) for span in found}
    shown = printed(show_dataset, describe(LocalStorage(old)))
    assert "shuffle seed" in shown
    assert f"of {3 * DOCUMENTS:,} documents" in shown


class _KilledError(BaseException):
    """Raised in place of a signal."""


class _Dying:
    """Counts the files put on and removed from local storage, and dies before one of these."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done, self.dies_before = 0, -1
        for name in ("put", "put_file", "remove"):
            monkeypatch.setattr(LocalStorage, name, self._dying(getattr(LocalStorage, name)))

    def _dying(self, whole: Callable[..., None]) -> Callable[..., None]:
        def call(storage: LocalStorage, *args: Any, **options: Any) -> None:
            if self.done == self.dies_before:
                raise _KilledError
            self.done += 1
            whole(storage, *args, **options)

        return call


@pytest.mark.parametrize("kind", ["plain", "exact", "both"], indirect=True)
def test_killed_anywhere(old, lines, tmp_path, monkeypatch) -> None:
    """Kills come at random steps: the dataset stays sound, the same command gives equal bytes."""
    new = [lines / "2.jsonl", lines / "3.jsonl"]
    twin = shutil.copytree(old, tmp_path / "twin")
    dying = _Dying(monkeypatch)
    extended(twin, *new)
    steps_of_all, draw = dying.done, random.Random(0)
    before = (old / "manifest.json").read_bytes()
    unpublished = 0
    for begin, end in ((0, 0.5), (0.5, 0.9), (0.9, 1)):
        root = shutil.copytree(old, tmp_path / f"from {begin}")
        dying.done = 0
        dying.dies_before = draw.randrange(int(begin * steps_of_all), int(end * steps_of_all))
        with pytest.raises(_KilledError):
            extended(root, *new)
        dying.dies_before = -1
        unpublished += (root / "manifest.json").read_bytes() == before
        require_sound(root)
        extended(root, *new)
        assert file_hashes(root) == file_hashes(twin)
        assert extended(root, *new).published
    assert unpublished


@BOTH
def test_lost_hashes(old, lines, originals) -> None:
    lost = old / "digests/00000/00000.parquet"
    data = lost.read_bytes()
    lost.unlink()
    assert found_in(old) == ["digests/00000/00000.parquet"]
    with pytest.raises(CorruptDatasetError, match=r"lost digests/.*Put it back from a copy"):
        planned(old, lines / "2.jsonl")
    sources = originals("both").parent / "sources"
    settings = {"shard_size": 2**12, "sequence_length": 16, **KINDS["both"]}
    build_from(sources, old, **settings)
    assert lost.read_bytes() == data


def partitions(plan: ShardBuild, storage: Storage, folder: Path) -> Iterator[ShardBuild]:
    """Yield the plan of each of two hosts."""
    put_shared_plan(plan, storage, folder.name, 2)
    shared = read_plan(storage, folder.name)
    for number, parts in enumerate(shared.partitions):
        scratch = folder / str(number)
        scratch.mkdir(parents=True)
        yield partition_plan(shared, shared.execution(), storage, parts, scratch)


def test_hosts_make_partitions_of_each_phase_by_the_plan_that_they_share(
    old, lines, tmp_path
) -> None:
    """The bytes of a shuffled dataset do not even depend on how the new files are cut."""
    new = [lines / "2.jsonl", lines / "3.jsonl"]
    twin = shutil.copytree(old, tmp_path / "twin")
    cut = {"part_size": 1500} if manifest_of(old).shuffled is not None else {}
    extended(twin, *new, **cut)
    plan, storage = planned(old, *new)
    for own in partitions(plan, storage, tmp_path / "sort"):
        do_parts(own, storage)
    plan = second_phase(plan, storage)
    for own in partitions(plan, storage, tmp_path / "merge"):
        do_parts(own, storage)
    publish(plan, storage)
    storage.close()
    assert file_hashes(old) == file_hashes(twin)
