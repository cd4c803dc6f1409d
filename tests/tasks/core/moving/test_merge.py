"""Merged datasets hold every document of each, in order, with its origin; no shard is rewritten."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from streaming_ext.base.errors import (
    ConfigMismatchError,
    CorruptDatasetError,
    NotADatasetError,
    UsageError,
)
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.schema import from_json
from streaming_ext.store import open_storage
from tasks.core.check.inspect import describe
from tests.streaming_ext.build import some_documents
from tests.tasks.core.build_dataset import (
    Forger,
    as_written,
    build_dataset,
    build_from,
    require_sound,
)
from tests.tasks.core.check.damage import check, files_named
from tests.tasks.core.exports.exporting import content, exported
from tests.tasks.core.imports.importing import documents_in, imported, write_ids
from tests.tasks.core.moving.moved import merged
from tests.tasks.core.subsets.with_columns import subset


@pytest.fixture(scope="module")
def both(first, second, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("merged") / "both"
    merged([first, second], output)
    return output


def test_all_documents_of_each_in_order(first, second, both) -> None:
    ours, one, other = Forger(both), Forger(first), Forger(second)
    assert sorted(ours.records) == [0, 1, 2, 3, 4]
    for split in ("train", "holdout"):
        for part in ours.records:
            origin, number = (one, part) if part < 2 else (other, part - 2)
            assert np.array_equal(ours.stream(part, split), origin.stream(number, split))
            assert ours.documents(part) == origin.documents(number)
            assert ours.records[part].source == origin.records[number].source
    sums = [one.manifest.splits["train"], other.manifest.splits["train"]]
    assert ours.manifest.splits["train"].documents == sum(each.documents for each in sums)
    assert ours.manifest.spec_of(1) == one.spec
    assert ours.manifest.spec_of(2) == other.spec
    assert ours.spec.filters != other.spec.filters
    assert [each.parts for each in ours.manifest.merged] == [2, 3]
    report = require_sound(both, deep=True)
    assert report.checked.sources == 5
    assert report.checked.retokenized == report.checked.documents
    assert describe(open_storage(str(both))).facts()["merged"] == 2
    # The files are hard links to those of the datasets.
    names = {file.stat().st_ino for root in (first, second) for file in root.rglob("*.*")}
    files = [*both.glob("*/*/shard.*"), *both.glob("documents/*")]
    assert len(files) > 10
    assert all(file.stat().st_ino in names for file in files)


def test_files_of_a_merge_are_files_where_those_of_a_dataset_are_links(
    first, second, tmp_path
) -> None:
    """The Hub's cache holds such datasets: links to files elsewhere on the disk."""
    snapshot = shutil.copytree(second, tmp_path / "snapshot")
    (tmp_path / "blobs").mkdir()
    one, other, *_ = sorted(snapshot.glob("train/*/shard.*"))
    for number, shard in enumerate((one, other)):
        blob = shard.rename(tmp_path / "blobs" / str(number))
        relative = Path("../../../blobs", blob.name)
        shard.symlink_to(relative if number == 0 else blob)
    assert one.read_bytes()
    merged([first, snapshot], tmp_path / "both")
    assert not [file for file in (tmp_path / "both").rglob("*") if file.is_symlink()]
    require_sound(tmp_path / "both")


def test_a_merged_dataset_is_merged_as_its_parts(first, second, both, tmp_path) -> None:
    """(A + B) + C has the same bytes as A + B + C."""
    texts = [[f"Document {number} of the third dataset." for number in range(20)]]
    third = build_dataset(tmp_path / "third", texts)
    merged([both, third], tmp_path / "nested")
    merged([first, second, third], tmp_path / "flat")
    assert content(tmp_path / "nested") == content(tmp_path / "flat")


def test_a_subset_that_took_nothing_of_a_member_is_merged(first, second, both, tmp_path) -> None:
    count = sum(split.documents for split in Forger(first).manifest.splits.values())
    subset(both, tmp_path / "subset", documents=count, first=True)
    merged([tmp_path / "subset", second], tmp_path / "again")
    parts = [each.parts for each in Forger(tmp_path / "again").manifest.merged]
    assert parts[1:] == [0, 3]
    require_sound(tmp_path / "again", deep=True)


def test_what_does_not_go_together_is_refused_by_field(first, tmp_path) -> None:
    other = build_dataset(
        tmp_path / "other",
        [["A text of its own."] * 5],
        sequence_length=32,
        holdout_fraction=0.5,
        compression="none",
    )
    with pytest.raises(ConfigMismatchError) as refused:
        merged([first, other], tmp_path / "out")
    lines = str(refused.value).splitlines()
    named = [line.split(":")[0].strip() for line in lines if line.startswith("  ")]
    assert sorted(named) == ["compression", "holdout_fraction", "sequence_length"]
    assert not (tmp_path / "out").exists()


def test_imports_go_together_however_their_sets_were_read(first, tokenizer, tmp_path) -> None:
    """They do not go with texts, which are held out by a hash of the text, not of the ids."""
    options = {"holdout_fraction": 0.2, "sequence_length": 64, "shard_size": 4096}
    one, other = tmp_path / "one", tmp_path / "other"
    ids = write_ids(tmp_path / "x.bin", some_documents(20))
    imported("nanogpt", ids, one, **options)
    ids = write_ids(tmp_path / "x.npy", some_documents(20, seed=1), dtype="<u4")
    imported("olmo", ids, other, **options, dtype="uint32")
    merged([one, other], tmp_path / "both")
    held, more = documents_in(one), documents_in(other)
    assert documents_in(tmp_path / "both") == {name: held[name] + more[name] for name in held}
    require_sound(tmp_path / "both", deep=True)
    with pytest.raises(ConfigMismatchError, match=r"imported\.holdout_by"):
        merged([one, first], tmp_path / "out")


def test_deduplicated_datasets_and_exports_are_refused(first, tmp_path) -> None:
    text = [[f"Text {number}." for number in range(9)]]
    other = build_dataset(tmp_path, text, deduplicate="exact")
    with pytest.raises(UsageError, match="was made with deduplicate"):
        merged([first, other], tmp_path / "out")
    export = exported(first, tmp_path / "export", "nanogpt")
    with pytest.raises(NotADatasetError, match="is an export for another trainer, not a dataset"):
        merged([first, export], tmp_path / "out")


def test_texts_repeat_only_on_request(first, tmp_path) -> None:
    again = build_from(first.parent / "sources", tmp_path / "again")
    with pytest.raises(UsageError, match="its texts would be there twice"):
        merged([first, again], tmp_path / "out")
    merged([first, again], tmp_path / "out", repeats=True)
    require_sound(tmp_path / "out")
    documents = [
        Forger(root).manifest.splits["train"].documents for root in (first, tmp_path / "out")
    ]
    assert documents[1] == 2 * documents[0]


def test_a_file_that_was_cut_in_another_way_is_the_same_file(tmp_path) -> None:
    (tmp_path / "sources").mkdir()
    lines = [json.dumps({"text": f"Text {number} of one file."}) for number in range(300)]
    (tmp_path / "sources/one.jsonl").write_text("\n".join(lines) + "\n")
    whole, *cut = (
        build_from(tmp_path / "sources", tmp_path / str(size), part_size=size)
        for size in (10**9, 3000, 4096)
    )
    for datasets in ([whole, cut[0]], cut):
        with pytest.raises(UsageError, match=r"one\.jsonl is a source of .* its texts would be"):
            merged(datasets, tmp_path / "out")


def test_a_lost_or_cut_shard_is_no_merge(first, second, tmp_path) -> None:
    original = shutil.copytree(second, tmp_path / "original")
    shard = sorted((original / "train/00001").iterdir())[0]
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CorruptDatasetError, match=shard.name):
        merged([first, original], tmp_path / "out")
    shard.unlink()
    with pytest.raises(CorruptDatasetError, match=f"{shard.name}: missing"):
        merged([first, original], tmp_path / "other")


def test_a_forged_list_of_what_was_merged_is_found(both, tmp_path) -> None:
    copy = shutil.copytree(both, tmp_path / "copy")
    value = json.loads((copy / "manifest.json").read_bytes())
    value["merged"][0]["parts"] = 1
    with pytest.raises(CorruptDatasetError, match="contradicts itself in merged"):
        from_json(Manifest, json.dumps(value).encode(), where="manifest.json")
    value["merged"][0]["parts"], value["merged"][1]["parts"] = 3, 2
    (copy / "manifest.json").write_bytes(as_written(value))
    assert files_named(check(copy)) == {"manifest.json"}
