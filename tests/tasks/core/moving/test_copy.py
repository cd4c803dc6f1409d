"""Copies hold the same files, each checked on its way; a killed copy is no dataset."""

import shutil
from pathlib import Path

import pytest

from streaming_ext.base.errors import (
    ConfigMismatchError,
    CorruptDatasetError,
    NotADatasetError,
    UsageError,
)
from streaming_ext.store import open_storage
from tasks.core.check.export import compare_copy, verify_export
from tasks.core.check.findings import Report
from tasks.core.derive.config import CopyConfig
from tasks.core.derive.move import plan_copy
from tests.tasks.core import running
from tests.tasks.core.build_dataset import require_sound
from tests.tasks.core.check.damage import check, flip
from tests.tasks.core.exports.exporting import content, exported
from tests.tasks.core.extending.extended import extended, write_source
from tests.tasks.core.moving.moved import copied
from tests.tasks.core.subsets.test_subset import subset


def started(original: Path, output: Path) -> None:
    """Make a copy that is killed after its first part."""
    config = CopyConfig(dataset=str(original), output=str(output))
    plan, storage = running.planned(plan_copy, config)
    running.do_parts(plan, storage, [0])


def compared(original: Path, output: Path) -> Report:
    return compare_copy(open_storage(str(original)), open_storage(str(output)), workers=2)


def test_a_copy_is_the_same_in_files_of_its_own(first, tmp_path) -> None:
    output = tmp_path / "copy"
    copied(first, output)
    assert content(output) == content(first)
    require_sound(output)
    assert not {file.stat().st_ino for file in output.rglob("*") if file.is_file()} & {
        file.stat().st_ino for file in first.rglob("*") if file.is_file()
    }
    assert [file.name for file in tmp_path.iterdir()] == ["copy"]
    assert copied(first, output).published


@pytest.mark.parametrize("form", ["megatron", "webdataset"])
def test_a_copy_of_an_export(first, tmp_path, form) -> None:
    """Several parts write Megatron's files; a folder of WebDataset's begins with a dot."""
    export = exported(first, tmp_path / "export", form)
    copied(export, tmp_path / "copy")
    assert content(tmp_path / "copy") == content(export)
    report = verify_export(open_storage(str(tmp_path / "copy")))
    assert report.sound
    assert not report.not_compared


def test_an_unfinished_copy_names_the_command_that_finishes_it(first, tmp_path) -> None:
    """The command in the message can be pasted into a shell."""
    output = tmp_path / "a copy"
    started(first, output)
    with pytest.raises(NotADatasetError):
        check(output)
    with pytest.raises(NotADatasetError, match=f"`shardmill copy {first} '{output}'` to finish it"):
        compared(first, output)


def test_a_damaged_original_is_not_copied(first, tmp_path) -> None:
    original = shutil.copytree(first, tmp_path / "the original")
    shard = sorted((original / "train/00001").iterdir())[0]
    flip(shard)
    with pytest.raises(
        CorruptDatasetError,
        match=rf"train/00001/{shard.name}: bytes .* expected .* `shardmill verify '{original}'`",
    ):
        copied(original, tmp_path / "copy")
    assert not (tmp_path / "copy/train/00001" / shard.name).exists()
    assert not (tmp_path / "copy/parts/00001.json").exists()
    shard.unlink()
    with pytest.raises(CorruptDatasetError, match="missing"):
        copied(original, tmp_path / "other")


def test_an_output_with_something_else_is_refused(first, second, tmp_path) -> None:
    copied(first, tmp_path / "copy")
    started(first, tmp_path / "started")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/letter.txt").write_text("dear")
    another = "started or made as something else"
    refusals = [
        (second, tmp_path / "copy", ConfigMismatchError, another),
        (second, tmp_path / "started", ConfigMismatchError, another),
        (first, tmp_path / "own", UsageError, r"letter\.txt"),
        (first, first, UsageError, "is the dataset itself"),
        (first, second / "copy", UsageError, "lies inside"),
        (tmp_path / "own", tmp_path / "else", NotADatasetError, "own"),
    ]
    for original, output, error, words in refusals:
        with pytest.raises(error, match=words):
            copied(original, output)


def test_files_that_a_copy_lost_are_found_and_put_again(first, tmp_path) -> None:
    output = tmp_path / "copy"
    copied(first, output)
    shard = sorted((output / "train/00000").iterdir())[0]
    index = output / "train/index.json"
    flip(index)
    shard.unlink()
    (output / "letter.txt").write_text("dear")
    assert [(each.file, each.problem.split()[0]) for each in compared(first, output).findings] == [
        ("letter.txt", "4"),
        (f"train/00000/{shard.name}", "missing"),
        ("train/index.json", "bytes"),
    ]
    (output / "letter.txt").unlink()
    index.unlink()  # a file of the right size is accepted: it was read when it was put
    assert copied(first, output).todo == (0, 1)
    assert compared(first, output).sound
    assert content(output) == content(first)


def test_an_output_started_before_an_extension_is_refused(first, tmp_path) -> None:
    """One sentence refuses copies, exports and subsets alike; a copy can be extended."""
    dataset = shutil.copytree(first, tmp_path / "dataset")
    started(dataset, tmp_path / "started")
    copied(dataset, tmp_path / "copy")
    exported(dataset, tmp_path / "export", "nanogpt")
    subset(dataset, tmp_path / "subset", documents=5)
    sources = [
        write_source(tmp_path / f"{number}.parquet", [f"A newer text, {number}."])
        for number in range(2)
    ]
    extended(dataset, sources[0])
    for name in ("started", "copy"):
        with pytest.raises(ConfigMismatchError, match=f"{name} was started or made"):
            copied(dataset, tmp_path / name)
    older = verify_export(open_storage(str(tmp_path / "export")))  # the dataset as it was then
    assert (older.sound, older.not_compared) == (True, "")
    with pytest.raises(ConfigMismatchError, match=r"was started or made[\s\S]*extended since"):
        exported(dataset, tmp_path / "export", "nanogpt")
    with pytest.raises(ConfigMismatchError, match=r"subset\.of: the output has"):
        subset(dataset, tmp_path / "subset", documents=5)
    copied(dataset, tmp_path / "again")
    extended(tmp_path / "again", sources[1])
    require_sound(tmp_path / "again", deep=True)
