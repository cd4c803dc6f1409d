"""Files appear whole or not at all, below the root only, and for one run at a time."""

import errno
import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streaming_ext.base.errors import StorageError, UsageError
from streaming_ext.store import LocalStorage, holding, open_storage
from tests.full_disk import full_disk

HOLD = """
import sys, time
from pathlib import Path
from streaming_ext.store import LocalStorage
with LocalStorage(Path(sys.argv[1])).exclusive():
    print("held", flush=True)
    sys.stdin.read()
"""
PUT_AND_DIE = """
import os, signal, sys
from pathlib import Path
from streaming_ext.store import LocalStorage
def dies(*_):
    os.kill(os.getpid(), signal.SIGKILL)
setattr({"fsync": os, "replace": Path}[sys.argv[2]], sys.argv[2], dies)
storage = LocalStorage(Path(sys.argv[1]))
storage.put("train/new.mds", b"n" * 100_000)
"""


def test_a_file_is_copied_if_it_cannot_have_a_second_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(target))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    storage = LocalStorage(tmp_path / "out")
    storage.create()
    (tmp_path / "file").write_bytes(b"whole")
    storage.put_file("train/x", tmp_path / "file")
    assert storage.read("train/x") == b"whole"
    assert (tmp_path / "out/train/x").stat().st_nlink == 1
    assert storage.leftovers() == []


@pytest.mark.parametrize("lasting", [True, False])
def test_only_what_is_to_last_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def recording(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        assert flags & os.O_ACCMODE == os.O_RDONLY  # the file may be read-only
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    storage = LocalStorage(tmp_path / "out")
    storage.create()
    (tmp_path / "file").write_bytes(b"whole")
    synced.clear()
    storage.put_file("shuffle/x", tmp_path / "file", lasting=lasting)
    assert storage.read("shuffle/x") == b"whole"
    assert storage.leftovers() == []
    folders = [path for path in synced if path.endswith("/shuffle")]
    assert (len(synced), len(folders)) == ((2, 1) if lasting else (0, 0))


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    made = LocalStorage(tmp_path / "out")
    made.create()
    return made


class TestPut:
    @pytest.mark.parametrize("moment", ["fsync", "replace"])
    def test_killed_in_the_middle(self, storage: LocalStorage, moment: str) -> None:
        storage.put("train/old.mds", b"old")
        command = [sys.executable, "-c", PUT_AND_DIE, str(storage.root), moment]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert storage.list() == {"train/old.mds": 3}
        assert len(list((storage.root / ".incoming").iterdir())) == 1
        storage.remove_incoming()
        assert not list((storage.root / ".incoming").iterdir())
        assert storage.list() == {"train/old.mds": 3}
        storage.close()
        assert [path.name for path in storage.root.iterdir()] == ["train"]

    def test_into_a_root_that_was_removed_or_is_meanwhile(
        self, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.rmtree(storage.root)
        with pytest.raises(StorageError, match=r"Cannot write train/y to .*out: no such file"):
            storage.put("train/y", b"y")
        assert not storage.root.exists()
        storage.create()
        monkeypatch.setattr(os, "fsync", lambda _: shutil.rmtree(storage.root))
        with pytest.raises(StorageError, match="Cannot write train/00000/x"):
            storage.put("train/00000/x", b"x")
        assert not storage.root.exists()

    def test_where_a_file_stands_in_the_way(self, storage: LocalStorage) -> None:
        storage.put("train", b"a file")
        with pytest.raises(StorageError, match="Cannot write train/x"):
            storage.put("train/x", b"x")
        storage.put("documents/x", b"x")
        with pytest.raises(StorageError, match="Cannot write documents to"):
            storage.put("documents", b"x")
        assert storage.list() == {"documents/x": 1, "train": 6}

    def test_a_failed_put_leaves_nothing_and_the_old_file(
        self, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage.put("x", b"old")

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="no space left on device") as caught:
            storage.put("x", b"new")
        assert caught.value.fatal
        assert not caught.value.transient
        assert storage.read("x") == b"old"
        assert not list((storage.root / ".incoming").iterdir())


class TestReadListRemove:
    def test_read_what_is_no_file(self, storage: LocalStorage) -> None:
        storage.put("train/x", b"")
        with pytest.raises(StorageError, match="Cannot read train in .*: is a directory"):
            storage.read("train")

    def test_an_empty_folder_is_removed_with_its_last_file(self, storage: LocalStorage) -> None:
        for path in ("train/a/b", "x"):
            storage.put(path, b"")
            storage.remove(path)
            storage.remove(path)
        assert storage.list() == {}
        assert not (storage.root / "train/a").exists()
        assert storage.root.exists()

    def test_what_cannot_be_listed_or_removed(
        self, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage.put("train/x", b"1")
        with pytest.raises(StorageError, match="Cannot remove train of"):
            storage.remove("train")
        (storage.root / "loop").symlink_to("nowhere")
        assert storage.list() == {"train/x": 1}

        def refuse(path: str) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(StorageError, match=r"Cannot list .*permission denied"):
            storage.list()
        with pytest.raises(StorageError, match=r"Cannot list .*incoming: permission denied"):
            monkeypatch.setattr(Path, "iterdir", lambda path: refuse(str(path)))
            storage.leftovers()


def test_create(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "a/b/c")
    for _ in range(2):
        storage.create()
        storage.put("x", b"x")
    assert storage.list() == {"x": 1}
    assert str(storage) == str(tmp_path / "a/b/c")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Cannot write to .*file/out: not a directory"):
        LocalStorage(tmp_path / "file/out").create()
    with pytest.raises(UsageError, match=r"/file is a file: the output is a folder, s3://"):
        LocalStorage(tmp_path / "file").create()


@contextmanager
def holder(root: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start another process that holds the dataset."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


class TestExclusive:
    @pytest.fixture(autouse=True)
    def _short_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(holding, "_LOCK_WAIT_SECONDS", 0.3)

    def test_one_that_lives_is_not_waited_for(
        self, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(holding, "_LOCK_WAIT_SECONDS", 60.0)
        with holder(storage.root) as other:
            began = time.monotonic()
            with pytest.raises(UsageError, match=f"process {other.pid} on "), storage.exclusive():
                pytest.fail("held twice")
            assert time.monotonic() - began < 40

    def test_waits_for_workers_of_one_that_was_killed(
        self, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(holding, "_LOCK_WAIT_SECONDS", 60.0)
        lock = storage.root / "runs/.lock"
        with holder(storage.root) as other:
            worker = lock.open("rb")
        assert other.poll() is not None
        with worker:
            fcntl.flock(worker, fcntl.LOCK_EX)
            began = time.monotonic()
            threading.Timer(0.3, fcntl.flock, (worker, fcntl.LOCK_UN)).start()
            messages: list[str] = []
            with storage.exclusive(messages.append):
                assert 0.2 < time.monotonic() - began < 50
            who = f"another run (process {other.pid} on {platform.node()})"
            assert set(messages) == {f"waiting for {who} to let go of {storage}"}

    def test_a_process_that_inherits_the_descriptor_holds_it_too(
        self, storage: LocalStorage
    ) -> None:
        with storage.exclusive() as descriptor:
            command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[descriptor])
        with child:
            try:
                with pytest.raises(UsageError), storage.exclusive():
                    pytest.fail("the child still holds it")
            finally:
                child.kill()
        with storage.exclusive():
            pass

    def test_a_file_system_without_locks(
        self, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Examples are Lustre without -o flock, and some NFS."""

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(holding.fcntl, "flock", refuse)
        with (
            pytest.raises(StorageError, match="takes no locks.*Mount it with locks") as caught,
            storage.exclusive(),
        ):
            pytest.fail("held")
        assert str(storage.root) in str(caught.value)


def test_open_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for url, expected in (
        ("/data/out", Path("/data/out")),
        ("file:///data/out", Path("/data/out")),
        ("~/out", Path("/home/me/out")),
        ("out", tmp_path / "out"),
    ):
        assert open_storage(url).root == expected
    for url in ("ftp://host/out", "hf://datasets/x"):
        with pytest.raises(UsageError, match="is not supported as output; expected a folder"):
            open_storage(url)


def test_a_full_disk_below_the_lock_does_not_hide_what_went_wrong(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "out")
    storage.create()
    with (
        full_disk(),
        pytest.raises(StorageError, match=r"Cannot write train/x to .*: file too large"),
        storage.exclusive(),
    ):
        storage.put("train/x", b"x")
    with storage.exclusive():
        storage.put("train/x", b"x")
