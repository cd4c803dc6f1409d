"""Scratch folders are made, reused and emptied only if they are this user's own."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming_ext.base.errors import ScratchError, StorageError, UsageError
from streaming_ext.store import open_storage
from streaming_ext.store.scratch import (
    SCRATCH_MARK,
    own_folder,
    remove_scratch,
    take_scratch,
    user_scratch,
)
from tasks.core.derive.config import CopyConfig
from tasks.core.derive.move import plan_copy
from tests.tasks.core.exports.exporting import make_dataset
from tests.tasks.core.running import begun


def test_a_bucket_s_is_the_users_own_and_named_by_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, two = open_storage("s3://bucket/a/out"), open_storage("s3://bucket/b/out")
    assert one.name.startswith("out-")
    assert one.name != two.name
    assert one.name == open_storage("s3://bucket/a/out/").name
    own = one.scratch_parent
    assert (own.parent, own.stat().st_mode & 0o777) == (tmp_path, 0o700)
    own.rmdir()
    (tmp_path / "theirs").mkdir()
    own.symlink_to(tmp_path / "theirs")
    with pytest.raises(StorageError, match="Pass --scratch"):
        _ = one.scratch_parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".out.scratch"


def test_a_temporary_folder_that_is_not_utf8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / os.fsdecode(b"a\xff")
    odd.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(odd))
    with pytest.raises(UsageError, match=r"a\\+xff' is not UTF-8.* TMPDIR .* --scratch") as raised:
        user_scratch()
    str(raised.value).encode()  # the message can be written
    assert not list(odd.iterdir())


def test_it_is_the_users_own_emptied_of_what_a_killed_run_left_and_removed(folder: Path) -> None:
    take_scratch(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in folder.iterdir()] == [SCRATCH_MARK]
    for name in ("00003", "sources", "anything"):
        (folder / name).mkdir()
        (folder / name / "file").touch()
    (folder / "00003/link").symlink_to(folder.parent)
    (folder / "file").touch()
    take_scratch(folder, keep=[folder / "sources"])
    left = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert left == {SCRATCH_MARK, "sources", "sources/file"}
    for _ in range(2):
        remove_scratch(folder)
        assert not folder.exists()


def _link(folder: Path, victim: Path) -> None:
    folder.symlink_to(victim)


def _files(folder: Path, victim: Path) -> None:
    victim.rename(folder)


def _link_to_marked(folder: Path, victim: Path) -> None:
    (victim / SCRATCH_MARK).touch()
    folder.symlink_to(victim)


def _file(folder: Path, victim: Path) -> None:
    folder.touch()


@pytest.mark.parametrize("lay", [_link, _link_to_marked, _files, _file])
def test_what_is_not_of_a_run_stays(folder: Path, lay: Callable[[Path, Path], None]) -> None:
    victim = folder.parent / "victim"
    (victim / "mine").mkdir(parents=True)
    (victim / "mine/keep.txt").touch()
    (victim / "00000").mkdir()
    lay(folder, victim)
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(ScratchError, match=f"{folder} is a link, .*--scratch"):
        take_scratch(folder)
    remove_scratch(folder)
    if lay is not _file:
        with pytest.raises(StorageError, match="is a link"), own_folder(folder, "guest"):
            pass
    assert sorted(folder.parent.rglob("*")) == before


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a folder away")
def test_a_folder_of_another_user_stays(folder: Path) -> None:
    take_scratch(folder)
    (folder / "00000").mkdir()
    os.chown(folder, 65534, 65534)
    with pytest.raises(ScratchError, match="another user"):
        take_scratch(folder)
    remove_scratch(folder)
    assert (folder / "00000").is_dir()


def test_what_makes_outputs_empties_nothing_that_is_not_of_a_run(tmp_path: Path) -> None:
    dataset, output = make_dataset(tmp_path).root, tmp_path / "out"
    storage = open_storage(str(output))
    plan = plan_copy(CopyConfig(dataset=str(dataset), output=str(output)), storage)
    (tmp_path / "victim/mine").mkdir(parents=True)
    (tmp_path / ".out.scratch").symlink_to("victim")
    with pytest.raises(ScratchError, match="is a link"):
        begun(plan, storage)
    assert (tmp_path / "victim/mine").is_dir()
