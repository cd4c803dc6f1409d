"""Copies are left out and the first stays, whatever the parts, the order, and the kills."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming_ext.base.errors import ConfigMismatchError, CorruptDatasetError, StorageError
from streaming_ext.format.duplicates import duplicates_path
from streaming_ext.format.layout import documents_path
from streaming_ext.store import LocalStorage, open_storage
from streaming_ext.text.text_hashes import UNICODE, normal_form
from streaming_ext.text.tokenizer import engine
from streaming_ext.text.tokenizer.engine import Encoded, ReferenceEngine
from tasks.core.reading.documents import PartOfDataset
from tasks.core.shard import part_work
from tasks.core.shuffle import known_texts
from tests.command_line import file_hashes
from tests.tasks.core.build_dataset import manifest_of, require_sound
from tests.tasks.core.check.damage import flip
from tests.tasks.core.running import do_parts, publish, second_phase
from tests.tasks.core.shuffle.building import KINDS

Where = tuple[str, int]  # a source file and a row in it
EACH_KIND = pytest.mark.parametrize("kind", KINDS, indirect=True)
DEDUPLICATED = pytest.mark.parametrize("kind", ["in order", "shuffled"], indirect=True)


def kept_and_left_out(root: Path) -> tuple[set[Where], dict[Where, Where]]:
    """Return the source rows of the documents, and those of copies with their first copies."""
    manifest = manifest_of(root)
    parts = [PartOfDataset(LocalStorage(root), manifest, each.part) for each in manifest.parts]
    origins = [part.source_rows() for part in parts]

    def where(group: int, row: int) -> Where:
        found = origins[0 if manifest.shuffled else group].of(row, group)
        return Path(found.source).name, found.row

    kept, left_out = set(), {}
    for part in manifest.parts:
        listed = pq.read_table(root / documents_path(part.part)).to_pydict()
        groups = listed.get("source", itertools.repeat(part.part))
        kept |= {where(group, row) for group, row in zip(groups, listed["row"], strict=False)}
        table = pq.read_table(root / duplicates_path(part.part))
        assert len(table) == part.duplicate_documents
        for own, row, _, first, first_row in zip(*[*table.to_pydict().values()][:5], strict=True):
            left_out[where(own, row)] = where(first, first_row)
    return kept, left_out


def expected(lines: Path, comparison: str) -> tuple[set[Where], dict[Where, Where]]:
    """Return what a dictionary of all texts finds, in the form of `kept_and_left_out`."""
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


@DEDUPLICATED
@pytest.mark.parametrize("comparison", ["exact", "normalized"])
def test_first_copy_stays(builder, lines, comparison) -> None:
    root = builder.build(deduplicate=comparison)
    found = kept_and_left_out(root)
    assert found == expected(lines, comparison)
    assert len(found[1]) > (14 if comparison == "normalized" else 10)
    manifest = manifest_of(root)
    assert manifest.duplicate_documents == len(found[1])
    assert not (root / "shuffle").exists()
    checked = require_sound(root, deep=True)
    assert checked.checked.duplicates == len(found[1])
    assert checked.checked.compared == len(found[0]) + len(found[1])
    root = builder.build("all", deduplicate=None)
    with_copies = manifest_of(root)
    assert manifest.tokens + manifest.duplicate_tokens == with_copies.tokens


def test_no_text_on_both_sides(builder, lines) -> None:
    """Texts that are equal once normalized go to the same split, even if all of them stay."""
    sides = {}
    for file in sorted(lines.iterdir()):  # each alone, like a node's partition
        alone = replace(builder, sources=file)
        root = alone.build(file.stem, deduplicate="normalized", holdout_fraction=0.5)
        rows = [json.loads(line)["text"] for line in file.read_text().splitlines()]
        listed = pq.read_table(root / documents_path(0)).to_pydict()
        for row, split in zip(listed["row"], listed["split"], strict=True):
            sides.setdefault(normal_form(rows[row]), set()).add(split)
    assert max(map(len, sides.values())) == 1
    assert set.union(*sides.values()) == {"train", "holdout"}


@DEDUPLICATED
def test_any_part_size(builder, whole, kind) -> None:
    made = [whole, builder.build("cut", part_size=2000)]
    made.append(builder.build("together", min_part_size=2**20))
    manifests = [manifest_of(root) for root in made]
    counts = {(m.duplicate_documents, m.duplicate_tokens, m.tokens) for m in manifests}
    assert len(counts) == 1
    if kind == "shuffled":
        assert file_hashes(made[0]) == file_hashes(made[1]) == file_hashes(made[2])
    else:
        assert len({len(manifest.parts) for manifest in manifests}) == 3


@DEDUPLICATED
def test_in_small_steps(builder, monkeypatch) -> None:
    monkeypatch.setattr("tasks.core.shuffle.copies.RANGE_DOCUMENTS", 10)
    expected = file_hashes(builder.build("one"))
    monkeypatch.setattr("streaming_ext.text.readers.json_files.MAX_BATCH_ROWS", 5)
    monkeypatch.setattr("tasks.core.shuffle.sort.MOST_DIGEST_BYTES", 300)
    monkeypatch.setattr("tasks.core.shuffle.spills.BLOCK_BYTES", 100)
    monkeypatch.setattr("tasks.core.workers.merge_part._IN_ORDER_BYTES", 4000)
    plan, storage = builder.begin("many")
    do_parts(plan, storage)
    second = second_phase(plan, storage)
    assert second.phase == "merge"
    assert len([path for path in storage.list("shuffle") if "/copies-" in path]) > 4
    assert len([path for path in storage.list("shuffle") if path.endswith(".digests")]) > 6
    assert file_hashes(builder.build("many")) == expected


@EACH_KIND
def test_a_killed_run_resumes(builder, whole) -> None:
    root = builder.folder / "killed"
    plan, storage = builder.begin(root)
    assert plan.todo == (0, 1, 2)
    do_parts(plan, storage, (0, 2))
    without_record = root / "shuffle" / "00001-000.spill"
    without_record.write_bytes(b"cut")
    plan, storage = builder.begin(root)
    assert plan.todo == (1,)
    assert not without_record.exists()
    do_parts(plan, storage)
    second = second_phase(plan, storage)
    assert len(second.todo) == len(second.parts) > 2
    do_parts(second, storage, second.todo[::2])
    (root / "documents" / "00001.parquet").write_bytes(b"cut")
    plan, storage = builder.begin(root)
    assert plan.todo == ()
    second = second_phase(plan, storage)
    assert second.todo == tuple(range(len(second.parts)))[1::2]
    do_parts(second, storage)
    builder.build(root)
    assert file_hashes(root) == file_hashes(whole)
    assert builder.begin(root)[0].published


def test_only_spills_need_not_last(builder, monkeypatch) -> None:
    put_file = LocalStorage.put_file
    found = set()

    def noting(self: LocalStorage, path: str, file: Path, *, lasting: bool = True) -> None:
        found.add((path.partition("/")[0], lasting))
        put_file(self, path, file, lasting=lasting)

    monkeypatch.setattr(LocalStorage, "put_file", noting)
    builder.build()
    lasting = {"train", "holdout", "documents", "duplicates"}
    assert found == {("shuffle", False), *((folder, True) for folder in lasting)}


@EACH_KIND
def test_what_a_loss_of_power_takes_is_made_again(builder, whole) -> None:
    """Spills are not synced: those of a recorded part may be lost or cut short."""
    root = builder.folder / "out"
    plan, storage = builder.begin(root)
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
    plan, _ = builder.begin(root)
    assert plan.todo == (0, 2)
    assert file_hashes(builder.build(root)) == file_hashes(whole)


def test_another_unicode(builder) -> None:
    plan, storage = builder.begin(deduplicate="normalized")
    assert plan.spec.unicode == UNICODE
    other = replace(plan, spec=plan.spec.model_copy(update={"unicode": "1.1"}))
    with pytest.raises(ConfigMismatchError, match=r"Unicode 1\.1"):
        do_parts(other, storage)


@DEDUPLICATED
def test_a_damaged_list_of_copies(builder) -> None:
    """test_killed_runs.py tests other damage."""
    plan, storage = builder.begin()
    do_parts(plan, storage)
    second = second_phase(plan, storage)
    flip(storage.root / "shuffle/copies-00000.spill")
    with pytest.raises(CorruptDatasetError, match=r"copies-00000\.spill is damaged"):
        do_parts(second, storage)


def test_all_are_copies(builder) -> None:
    """A part of which no document stays remains a part."""
    for number in range(3):
        (builder.folder / f"{number}.jsonl").write_text('{"text": "one text"}\n' * 5)
    root = replace(builder, sources=builder.folder / "*.jsonl").build()
    manifest = manifest_of(root)
    assert [part.duplicate_documents for part in manifest.parts] == [4, 5, 5]
    assert sum(split.documents for split in manifest.splits.values()) == 1
    tokens = pq.read_table(root / duplicates_path(2))["tokens"].to_numpy()
    assert manifest.duplicate_tokens == 14 * (int(tokens[0]) + 1)
    assert np.unique(tokens).size == 1


def test_object_storage(builder, bucket) -> None:
    root = builder.build()
    plan, _ = builder.begin("other")
    storage = open_storage(f"s3://{bucket}/out")
    do_parts(plan, storage)
    second = second_phase(plan, storage)
    do_parts(second, storage)
    publish(second, storage)
    names = set(storage.list())
    assert names == set(file_hashes(root))
    assert all(storage.read(name) == (root / name).read_bytes() for name in names)


# --- copies known while a part is tokenized are not tokenized; the dataset is the same


@pytest.fixture
def tokenized(monkeypatch) -> list[str]:
    """All texts that are tokenized."""
    texts: list[str] = []

    class Noting(ReferenceEngine):
        def encode(self, batch: pa.LargeStringArray) -> Encoded:
            texts.extend(batch.to_pylist())
            return super().encode(batch)

    monkeypatch.setattr(engine, "ReferenceEngine", Noting)
    return texts


@pytest.mark.parametrize(
    ("comparison", "filters", "rows"),
    [
        ("exact", {}, 5),
        ("exact", {"min_tokens": 60}, None),
        ("normalized", {}, None),
    ],
)
def test_each_text_is_tokenized_once(
    builder, tokenized, monkeypatch, comparison, filters, rows
) -> None:
    if rows:
        monkeypatch.setattr("streaming_ext.text.readers.json_files.MAX_BATCH_ROWS", rows)
    settings = {"deduplicate": comparison, "keep_columns": (), **filters}
    with monkeypatch.context() as patch:  # no copy is known
        patch.setattr(part_work, "finds_copies", lambda spec, storage: False)
        whole = builder.build("whole", **settings)
    every = [text for text in tokenized if text]
    assert len(set(every)) < len(every)
    tokenized.clear()
    root = builder.build(**settings)
    assert file_hashes(root) == file_hashes(whole)
    once = [text for text in tokenized if text]
    assert set(once) == set(every)
    if not filters:  # documents left out for their tokens are not remembered
        assert len(once) == len(set(every))


def test_one_worker_may_do_parts_in_any_order(builder, whole) -> None:
    plan, storage = builder.begin()
    do_parts(plan, storage, (1, 2, 0))
    assert file_hashes(builder.build()) == file_hashes(whole)


def test_a_source_that_changed_beneath_a_copy(builder, lines) -> None:
    sources = shutil.copytree(lines, builder.folder / "sources")
    builder = replace(builder, sources=sources)
    plan, storage = builder.begin()
    do_parts(plan, storage, (0, 1))
    for path in storage.list("shuffle"):
        if path.startswith("shuffle/00000"):
            storage.remove(path)
    (sources / "0.jsonl").write_text('{"text": "another text"}\n')
    plan, storage = builder.begin()
    assert plan.todo == (0, 2)
    do_parts(plan, storage)
    with pytest.raises(CorruptDatasetError, match="a source changed during the run. Remove"):
        do_parts(second_phase(plan, storage), storage)


def test_what_is_remembered_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(known_texts, "MOST_KNOWN", 1000)
    drawn = np.random.default_rng(0)
    keys = drawn.integers(0, 2**64, (2000, 2), np.uint64)
    tokens = drawn.integers(1, 2**24 - 1, 2000)
    table, end = known_texts._TokensByKey(), 0
    while not table.full:
        begin, end = end, end + int(drawn.integers(1, 40))
        table.add(keys[begin:end], tokens[begin:end])
        assert len(table._chunks) <= 10
    assert table.tokens_of(keys[:end]).tolist() == tokens[:end].tolist()
    for _ in range(2):  # keys added from here on are not remembered
        assert table.tokens_of(keys[end:]).max() == -1
        table.add(keys[end:], tokens[end:])
