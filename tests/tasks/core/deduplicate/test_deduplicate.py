"""Copies are left out, the first of them stays: whatever the parts, the order, and the kills."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import ConfigMismatchError, CorruptDatasetError, StorageError
from streaming_ext.format.duplicates import duplicates_path
from streaming_ext.format.provenance import read_provenance
from streaming_ext.format.reading import read_manifest, read_record
from streaming_ext.format.shuffled import sources_of
from streaming_ext.store import LocalStorage, open_storage
from streaming_ext.text.text_hashes import UNICODE, normal_form
from tasks.core.check.verify import verify
from tasks.core.shard.shard_build import ShardBuild
from tests.tasks.core.build_dataset import file_hashes
from tests.tasks.core.running import do_parts, publish, second_phase
from tests.tasks.core.shuffle import building

IN_ORDER: dict[str, Any] = {"shuffle": None, "shard_size": 4096, "deduplicate": "exact"}
SHUFFLE = building.SETTINGS
Where = tuple[str, int]  # a source file and a row of it


def build(sources: Path, root: Path, vocabulary: Path, **config: Any) -> Path:
    return building.build(sources, root, vocabulary, **(IN_ORDER | config))


def begin(
    lines: Path, root: Path, vocabulary: Path, **config: Any
) -> tuple[ShardBuild, LocalStorage]:
    return building.begin(lines, root, vocabulary, **(IN_ORDER | config))


KINDS: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": SHUFFLE,
    "shuffled with copies": {**SHUFFLE, "deduplicate": None},
}


@pytest.fixture(params=["in order", "shuffled"], scope="module")
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KINDS[request.param]


EACH_KIND = pytest.mark.parametrize("settings", KINDS, indirect=True)


@pytest.fixture(scope="module")
def whole(
    settings: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    lines: Path,
    vocabulary: Path,
) -> Path:
    """The dataset that is made in one go."""
    return build(lines, tmp_path_factory.mktemp("whole") / "out", vocabulary, **settings)


def kept_and_left_out(root: Path) -> tuple[set[Where], dict[Where, Where]]:
    """Where the documents of a dataset stood; where its copies did, and their first copies."""
    manifest = read_manifest(LocalStorage(root))
    names = [Path(part.source.url).name for part in manifest.parts]
    if manifest.shuffled is not None:
        sources = sources_of((root / manifest.shuffled.sources.path).read_bytes())
        names = [Path(source.identity.url).name for source in sources]
    kept, left_out = set(), {}
    for part in manifest.parts:
        record = read_record(LocalStorage(root), part.part)
        for batch in read_provenance((root / record.documents.path).read_bytes()):
            groups = itertools.repeat(part.part) if batch.sources is None else batch.sources
            kept |= {(names[g], int(row)) for g, row in zip(groups, batch.rows, strict=False)}
        table = pq.read_table(root / duplicates_path(part.part))
        assert len(table) == record.duplicate_documents
        for own, row, _, first, first_row in zip(*table.to_pydict().values(), strict=True):
            left_out[names[own], row] = names[first], first_row
    return kept, left_out


def expected(lines: Path, comparison: str) -> tuple[set[Where], dict[Where, Where]]:
    """The same by a dictionary of all texts."""
    firsts: dict[str, Where] = {}
    left_out = {}
    for file in sorted(lines.iterdir()):
        for row, line in enumerate(file.read_text().splitlines()):
            text = json.loads(line)["text"]
            if not text:
                continue
            name = normal_form(text) if comparison == "normalized" else text
            where = (file.name, row)
            if firsts.setdefault(name, where) != where:
                left_out[where] = firsts[name]
    return set(firsts.values()), left_out


@pytest.mark.parametrize("comparison", ["exact", "normalized"])
def test_first_copy_stays(
    tmp_path: Path, lines: Path, vocabulary: Path, comparison: str, settings: dict[str, Any]
) -> None:
    root = build(lines, tmp_path / "out", vocabulary, deduplicate=comparison, **settings)
    found = kept_and_left_out(root)
    assert found == expected(lines, comparison)
    assert len(found[1]) > (14 if comparison == "normalized" else 10)
    manifest = read_manifest(LocalStorage(root))
    assert manifest.duplicate_documents == len(found[1])
    assert not (root / "shuffle").exists()
    checked = verify(LocalStorage(root), deep=True)
    assert checked.findings == ()
    assert checked.checked.duplicates == len(found[1])
    assert checked.checked.compared == len(found[0]) + len(found[1])
    root = build(lines, tmp_path / "all", vocabulary, deduplicate=None)
    with_copies = read_manifest(LocalStorage(root))
    assert manifest.tokens + manifest.duplicate_tokens == with_copies.tokens


def test_no_text_on_both_sides(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    """Texts that are equal once normalized fall on one side, also where all of them stay."""
    sides: dict[str, set[int]] = {}
    for number, file in enumerate(sorted(lines.iterdir())):  # each alone: as nodes of their own
        root = build(
            file, tmp_path / str(number), vocabulary, deduplicate="normalized", holdout_fraction=0.5
        )
        rows = [json.loads(line)["text"] for line in file.read_text().splitlines()]
        for batch in read_provenance((root / "documents" / "00000.parquet").read_bytes()):
            for row, split in zip(batch.rows.tolist(), batch.splits.tolist(), strict=True):
                sides.setdefault(normal_form(rows[row]), set()).add(split)
    assert max(map(len, sides.values())) == 1
    assert set.union(*sides.values()) == {0, 1}


def test_any_part_size(
    tmp_path: Path, lines: Path, whole: Path, vocabulary: Path, settings: dict[str, Any]
) -> None:
    made = [whole]
    for size in ({"part_size": 2000}, {"min_part_size": 2**20}):
        made.append(build(lines, tmp_path / str(len(made)), vocabulary, **size, **settings))
    manifests = [read_manifest(LocalStorage(root)) for root in made]
    counts = {(m.duplicate_documents, m.duplicate_tokens, m.tokens) for m in manifests}
    assert len(counts) == 1
    if settings:
        assert file_hashes(made[0]) == file_hashes(made[1]) == file_hashes(made[2])
    else:
        assert len({len(manifest.parts) for manifest in manifests}) == len(made)


def test_in_small_steps(
    tmp_path: Path, lines: Path, vocabulary: Path, monkeypatch: Any, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr("tasks.core.shuffle.copies.RANGE_DOCUMENTS", 10)
    expected = file_hashes(build(lines, tmp_path / "one", vocabulary, **settings))
    monkeypatch.setattr("streaming_ext.text.readers.json_files.MAX_BATCH_ROWS", 5)
    monkeypatch.setattr("tasks.core.shuffle.sort.MOST_DIGEST_BYTES", 300)
    monkeypatch.setattr("tasks.core.shuffle.spills.BLOCK_BYTES", 100)
    monkeypatch.setattr("tasks.core.workers.merge_part._IN_ORDER_BYTES", 4000)
    plan, storage = begin(lines, tmp_path / "many", vocabulary, **settings)
    do_parts(plan, storage)
    second = second_phase(plan, storage)
    assert second.phase == "merge"
    assert len([path for path in storage.list("shuffle") if "/copies-" in path]) > 4
    assert len([path for path in storage.list("shuffle") if path.endswith(".digests")]) > 6
    assert file_hashes(build(lines, tmp_path / "many", vocabulary, **settings)) == expected


@EACH_KIND
def test_a_killed_run_resumes(
    tmp_path: Path, lines: Path, whole: Path, vocabulary: Path, settings: dict[str, Any]
) -> None:
    root = tmp_path / "killed"
    plan, storage = begin(lines, root, vocabulary, **settings)
    assert plan.todo == (0, 1, 2)
    do_parts(plan, storage, (0, 2))
    without_record = root / "shuffle" / "00001-000.spill"
    without_record.write_bytes(b"cut")
    plan, storage = begin(lines, root, vocabulary, **settings)
    assert plan.todo == (1,)
    assert not without_record.exists()
    do_parts(plan, storage)
    second = second_phase(plan, storage)
    assert len(second.todo) == len(second.parts) > 2
    do_parts(second, storage, second.todo[::2])
    (root / "documents" / "00001.parquet").write_bytes(b"cut")
    plan, storage = begin(lines, root, vocabulary, **settings)
    assert plan.todo == ()
    second = second_phase(plan, storage)
    assert second.todo == tuple(range(len(second.parts)))[1::2]
    do_parts(second, storage)
    build(lines, root, vocabulary, **settings)
    assert file_hashes(root) == file_hashes(whole)
    assert begin(lines, root, vocabulary, **settings)[0].published


def test_only_spills_need_not_last(
    tmp_path: Path, lines: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_file = LocalStorage.put_file
    found: set[tuple[str, bool]] = set()

    def noting(self: LocalStorage, path: str, file: Path, *, lasting: bool = True) -> None:
        found.add((path.partition("/")[0], lasting))
        put_file(self, path, file, lasting=lasting)

    monkeypatch.setattr(LocalStorage, "put_file", noting)
    build(lines, tmp_path / "out", vocabulary)
    lasting = {"train", "holdout", "documents", "duplicates"}
    assert found == {("shuffle", False), *((folder, True) for folder in lasting)}


@EACH_KIND
def test_what_a_loss_of_power_takes_is_made_again(
    tmp_path: Path, lines: Path, whole: Path, vocabulary: Path, settings: dict[str, Any]
) -> None:
    """Spills are not synced: those of a recorded part may be gone, or cut short."""
    root = tmp_path / "out"
    plan, storage = begin(lines, root, vocabulary, **settings)
    do_parts(plan, storage)
    second = second_phase(plan, storage)
    (root / "shuffle/00000-000.spill").unlink()
    with pytest.raises(StorageError, match=r"00000-000\.spill is missing"):
        do_parts(second, storage)
    cut = root / (
        "shuffle/00002-000.digests" if plan.spec.deduplicate else "shuffle/00002-000.spill"
    )
    data = cut.read_bytes()
    cut.unlink()
    cut.write_bytes(data[: len(data) // 2])
    plan, _ = begin(lines, root, vocabulary, **settings)
    assert plan.todo == (0, 2)
    assert file_hashes(build(lines, root, vocabulary, **settings)) == file_hashes(whole)


def test_other_configuration(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    plan, storage = begin(lines, tmp_path / "out", vocabulary)
    do_parts(plan, storage)
    for other in ({"deduplicate": None}, {"deduplicate": "normalized"}, SHUFFLE):
        with pytest.raises(ConfigMismatchError, match="deduplicate|shuffle"):
            begin(lines, tmp_path / "out", vocabulary, **other)
    root = build(lines, tmp_path / "out", vocabulary)
    with pytest.raises(ConfigMismatchError, match="deduplicate"):
        begin(lines, root, vocabulary, deduplicate=None)


def test_another_unicode(tmp_path: Path, lines: Path, vocabulary: Path) -> None:
    plan, storage = begin(lines, tmp_path / "out", vocabulary, deduplicate="normalized")
    assert plan.spec.unicode == UNICODE
    other = replace(plan, spec=plan.spec.model_copy(update={"unicode": "1.1"}))
    with pytest.raises(ConfigMismatchError, match=r"Unicode 1\.1"):
        do_parts(other, storage)


@pytest.mark.parametrize("name", ["00001-000.digests", "00001-000.spill", "copies-00000.spill"])
def test_damaged_work(
    tmp_path: Path, lines: Path, vocabulary: Path, name: str, settings: dict[str, Any]
) -> None:
    plan, storage = begin(lines, tmp_path / "out", vocabulary, **settings)
    do_parts(plan, storage)
    if name.startswith("copies"):
        plan = second_phase(plan, storage)
    file = tmp_path / "out" / "shuffle" / name
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.unlink()
    file.write_bytes(data)
    with pytest.raises(CorruptDatasetError, match=rf"{name} is damaged|is not what this run put"):
        do_parts(second_phase(plan, storage) if plan.phase == "sort" else plan, storage)


def test_all_are_copies(tmp_path: Path, vocabulary: Path) -> None:
    """A part of which nothing stays is a part still."""
    sources = tmp_path / "sources"
    sources.mkdir()
    for number in range(3):
        (sources / f"{number}.jsonl").write_text('{"text": "one text"}\n' * 5)
    root = build(sources, tmp_path / "out", vocabulary)
    manifest = read_manifest(LocalStorage(root))
    assert [part.duplicate_documents for part in manifest.parts] == [4, 5, 5]
    assert sum(split.documents for split in manifest.splits.values()) == 1
    tokens = pq.read_table(root / duplicates_path(2))["tokens"].to_numpy()
    assert manifest.duplicate_tokens == 14 * (int(tokens[0]) + 1)
    assert np.unique(tokens).size == 1


def test_object_storage(tmp_path: Path, lines: Path, vocabulary: Path, bucket: str) -> None:
    root = build(lines, tmp_path / "out", vocabulary)
    plan, _ = begin(lines, tmp_path / "other", vocabulary)
    storage = open_storage(f"s3://{bucket}/out")
    do_parts(plan, storage)
    second = second_phase(plan, storage)
    do_parts(second, storage)
    publish(second, storage)
    names = set(storage.list())
    assert names == set(file_hashes(root))
    assert all(storage.read(name) == (root / name).read_bytes() for name in names)
