"""Near copies are left out for a witness that stays, whatever the parts, order and workers."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from flows.terminal.show_checks import show_dataset
from streaming_ext.base.errors import ConfigMismatchError, UsageError
from streaming_ext.format.duplicates import duplicates_path
from streaming_ext.store import LocalStorage
from tasks.core.check.inspect import describe
from tasks.core.options import Deduplication
from tasks.core.synthetic import make_documents
from tests.command_line import file_hashes
from tests.streaming_ext.text.packed import write_documents
from tests.tasks.core.build_dataset import build_from, found_in, manifest_of, require_sound
from tests.tasks.core.check.damage import printed
from tests.tasks.core.deduplicate.near_copies import NEAR, expected_near, write_near_copies
from tests.tasks.core.deduplicate.test_deduplicate import kept_and_left_out
from tests.tasks.core.deduplicate.test_verify import CopiesForger, problems
from tests.tasks.core.extending.extended import extended
from tests.tasks.core.moving.moved import merged
from tests.tasks.core.shuffle.building import SETTINGS, Builder
from tests.tasks.core.subsets.test_subset import subset

KINDS: dict[str, dict[str, Any]] = {"in order": {}, "shuffled": SETTINGS}
EACH_KIND = pytest.mark.parametrize("builder", KINDS, indirect=True)
OTHER = {"near_similarity": 0.55, "near_bands": 20, "near_rows": 3, "near_ngram": 2}


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> Path:
    return write_near_copies(tmp_path_factory.mktemp("near") / "lines")


@pytest.fixture
def builder(lines, tmp_path, request) -> Builder:
    kind = getattr(request, "param", "in order")
    return Builder(lines, tmp_path, {"deduplicate": "near", **KINDS[kind]})


def similarities(root: Path) -> list[float]:
    parts = manifest_of(root).parts
    tables = [pq.read_table(root / duplicates_path(part.part)) for part in parts]
    return sorted(value for table in tables for value in table["similarity"].to_pylist())


@EACH_KIND
@pytest.mark.parametrize("options", [{}, OTHER])
def test_the_rule(builder, lines, options) -> None:
    root = builder.build(**options)
    rule = Deduplication(deduplicate="near", **options).near
    kept, left_out = expected_near(lines, rule)
    witnesses = {place: witness for place, (witness, _) in left_out.items()}
    assert kept_and_left_out(root) == (kept, witnesses)
    assert len(kept) > 20
    assert len(left_out) > 20
    matches = np.array(sorted(found for _, found in left_out.values()))
    assert similarities(root) == rule.similarity_of(matches).tolist()
    checked = require_sound(root, deep=True)
    assert checked.checked.compared == len(kept) + len(left_out)
    assert manifest_of(root).spec.near == rule


@EACH_KIND
def test_any_parts_and_steps(builder, monkeypatch) -> None:
    one = builder.build()
    monkeypatch.setattr("tasks.core.shuffle.near.RANGE_BYTES", 2**12)
    monkeypatch.setattr("tasks.core.shuffle.near._AT_ONCE", 3)
    monkeypatch.setattr("tasks.core.shuffle.sort._SKETCHED", 5)
    monkeypatch.setattr("tasks.core.shuffle.sort.MOST_DIGEST_BYTES", 2**14)
    monkeypatch.setattr("tasks.core.shuffle.spills.BLOCK_BYTES", 500)
    monkeypatch.setattr("streaming_ext.text.readers.json_files.MAX_BATCH_ROWS", 7)
    assert file_hashes(builder.build("steps")) == file_hashes(one)
    cut = builder.build("cut", part_size=3000)
    manifests = manifest_of(one), manifest_of(cut)
    assert manifests[0].duplicate_tokens == manifests[1].duplicate_tokens
    assert similarities(cut) == similarities(one)


@EACH_KIND
def test_an_extension_compares_with_what_is_there(builder, lines, tmp_path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    for name in ("0.jsonl", "1.jsonl"):
        shutil.copy(lines / name, first)
    root = build_from(first, tmp_path / "old", **builder.settings)
    older = expected_near(first, NEAR)
    before = file_hashes(root)
    for name in ("2.jsonl", "3.jsonl"):
        extended(root, lines / name)
        shutil.copy(lines / name, first)
        older = expected_near(first, NEAR, older)
    kept, left_out = kept_and_left_out(root)
    assert (kept, left_out) == (older[0], {own: each for own, (each, _) in older[1].items()})
    assert any(own[0] > "1.jsonl" >= witness[0] for own, witness in left_out.items())
    require_sound(root, deep=True)
    kept_files = [path for path in before if path.startswith("digests/")]
    after = file_hashes(root)
    assert kept_files
    assert [after[path] for path in kept_files] == [before[path] for path in kept_files]


def test_no_near_copy_of_a_held_out_text_is_trained_on(builder, lines) -> None:
    root = builder.build(holdout_fraction=0.5)
    assert kept_and_left_out(root)[0] == expected_near(lines, NEAR)[0]
    assert {split.documents > 20 for split in manifest_of(root).splits.values()} == {True}


@EACH_KIND
def test_people_see_what_went(builder, lines) -> None:
    description = describe(LocalStorage(builder.build(shard_size=2**10)))
    _, left_out = expected_near(lines, NEAR)
    groups = Counter(witness for witness, _ in left_out.values())
    near = description.near
    found = [
        (Path(each.witness.source_row.source).name, each.witness.source_row.row)
        for each in near.groups
    ]
    assert [each.documents for each in near.groups] == [groups[place] for place in found]
    assert [each.documents for each in near.groups] == sorted(groups.values())[:-11:-1]
    matches = sorted(found for _, found in left_out.values())[:10]
    expected = NEAR.similarity_of(np.array(matches)).tolist()
    assert [pair.similarity for pair in near.pairs] == expected
    for pair in near.pairs:
        origin = pair.witness.source_row
        text = json.loads(Path(origin.source).read_text().splitlines()[origin.row])["text"]
        assert pair.witness.text
        assert " ".join(text.split()).startswith(pair.witness.text)
        origin = pair.source_row
        text = json.loads(Path(origin.source).read_text().splitlines()[origin.row])["text"]
        assert pair.text == " ".join(text[:240].split()) != ""
    losses = {Path(each.source).name: each.left_out for each in near.losses}
    assert losses == Counter(name for name, _ in left_out)
    assert sum(each.documents for each in near.losses) == 4 * 33
    text = printed(show_dataset, description)
    assert near.pairs[0].witness.text[:20] in text
    assert f"lost {near.losses[0].left_out} of 33 documents as near copies" in text
    json.dumps(description.facts())


@EACH_KIND
@pytest.mark.parametrize("options", [{}, OTHER])
def test_a_subset_from_ids_alone(builder, lines, tmp_path, options) -> None:
    original = builder.build(deduplicate=None)
    root = tmp_path / "subset"
    shutil.copytree(original, tmp_path / "alone")
    rule = Deduplication(deduplicate="near", **options).near
    subset(tmp_path / "alone", root, deduplicate="near", **options)
    kept, left_out = expected_near(lines, rule)
    witnesses = {place: witness for place, (witness, _) in left_out.items()}
    assert kept_and_left_out(root) == (kept, witnesses)
    matches = np.array(sorted(found for _, found in left_out.values()))
    assert similarities(root) == rule.similarity_of(matches).tolist()
    assert manifest_of(root).duplicate_documents == len(left_out)
    assert manifest_of(root).spec.subset.near == rule
    checked = require_sound(root, deep=True)
    assert checked.checked.compared == len(kept) + len(left_out)
    description = describe(LocalStorage(root))
    assert sum(each.left_out for each in description.near.losses) == len(left_out)


def test_a_subset_again(builder, tmp_path) -> None:
    original, root = builder.build(deduplicate=None), tmp_path / "subset"
    subset(original, root, deduplicate="near")
    assert subset(original, root, deduplicate="near").published
    with pytest.raises(ConfigMismatchError, match=r"subset\.near"):
        subset(original, root, deduplicate="near", near_similarity=0.9)
    with pytest.raises(UsageError, match="was made with deduplicate"):
        merged([original, root], tmp_path / "both")


@EACH_KIND
def test_witnesses_are_among_the_chosen(builder, tmp_path) -> None:
    """A copy is not listed if another choice left out its witness."""
    original, root = builder.build(deduplicate=None), tmp_path / "subset"
    options = {"deduplicate": "near", "where": "tokens >= 60", "documents": 9, "seed": 1}
    subset(original, root, **options)
    kept, left_out = kept_and_left_out(root)
    assert len(kept) == 9
    assert left_out
    assert {*left_out.values()} <= kept
    require_sound(root, deep=True)


def test_a_part_of_near_copies_alone(tmp_path) -> None:
    """It is listed with its copies, although it holds no document."""
    lines = tmp_path / "lines"
    lines.mkdir()
    texts = make_documents(6, seed=1)
    write_documents(lines / "0.jsonl", texts)
    write_documents(lines / "1.jsonl", [f"{text} again" for text in texts])
    for keep in ((), ("id",)):  # parts are joined, or stand alone
        name = "-".join(["made", *keep])
        original = build_from(lines, tmp_path / name, min_part_size=0, keep_columns=keep)
        root = tmp_path / f"subset-{name}"
        subset(original, root, deduplicate="near")
        kept, left_out = kept_and_left_out(root)
        assert {file for file, _ in kept} == {"0.jsonl"}
        assert left_out == {("1.jsonl", row): ("0.jsonl", row) for row in range(6)}
        require_sound(root, deep=True)


@pytest.fixture(params=["shard", "subset"])
def forger(lines, tmp_path, request) -> CopiesForger:
    if request.param == "shard":
        return CopiesForger(build_from(lines, tmp_path / "out", deduplicate="near"))
    original = build_from(lines, tmp_path / "all", min_part_size=0)
    subset(original, tmp_path / "out", deduplicate="near")
    return CopiesForger(tmp_path / "out")


@pytest.mark.parametrize("similarity", [0.5, 1.5, 0.8])
def test_a_similarity_that_is_none(forger, similarity) -> None:
    table = forger.copies(2)
    table["similarity"][0] = similarity
    forger.set_copies(2, table)
    assert f"has the similarity {similarity:.3f} to its witness" in problems(forger)


def test_another_witness(forger) -> None:
    """The list is consistent; only the sources show that it is wrong."""
    row = forger.name_another_first()
    assert not problems(forger)
    assert f"row {row} has similarity" in problems(forger, deep=True)


@pytest.mark.parametrize("forger", ["shard"], indirect=True)  # a subset keeps no sketches
@pytest.mark.parametrize("change", ["another order", "another sketch", "a shorter sketch"])
def test_changed_sketches(forger, change) -> None:
    (kept,) = forger.manifest.digests
    path = kept.files[0].path
    table = pq.read_table(forger.root / path)
    if change == "another order":
        table = table.take([1, 0, *range(2, len(table))])
    else:
        values = table["sketch"].to_pylist()
        values[0] = values[0][:-1] + (b"" if change == "a shorter sketch" else b"?")
        table = table.set_column(2, "sketch", [values])
    forger.set_digests(path, table)
    assert found_in(forger.root) == [path]


@pytest.mark.parametrize("option", OTHER)
def test_options_of_near_copies_alone(option) -> None:
    for comparison in ("exact", None):
        with pytest.raises(ValidationError, match="goes with --deduplicate near"):
            Deduplication(deduplicate=comparison, **{option: OTHER[option]})
