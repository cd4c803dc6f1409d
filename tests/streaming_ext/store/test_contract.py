"""The contract of every storage: a local disk, and S3, Google and Azure on their servers."""

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming_ext.base.errors import StorageError, UsageError
from streaming_ext.store import Storage, holding, lease, open_storage
from tests.streaming_ext.store.conftest import cloud_of

Open = Callable[[str], Storage]


@pytest.fixture(params=["local", "s3", "gs", "az"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Open storages by name, of each kind."""
    root = str(tmp_path)
    if request.param != "local":
        cloud = cloud_of(request.param, request)
        root = f"{cloud.scheme}://{cloud.bucket}/some/where"

    def open_one(name: str) -> Storage:
        storage = open_storage(f"{root}/{name}")
        storage.create()
        return storage

    return open_one


@pytest.fixture
def storage(opened: Open) -> Storage:
    return opened("out")


class TestFiles:
    def test_what_is_put_is_read(self, storage: Storage) -> None:
        storage.put("train/00000/shard.00000.mds.zstd", b"one")
        storage.put("manifest.json", b"")
        assert storage.read("train/00000/shard.00000.mds.zstd") == b"one"
        assert storage.read("manifest.json") == b""
        storage.put("manifest.json", b"two")
        assert storage.read("manifest.json") == b"two"

    def test_all_byte_values_and_sizes(self, storage: Storage) -> None:
        for size in (1, 255, 65_537, 9 * 2**20):
            data = (bytes(range(256)) * (size // 256 + 1))[:size]
            storage.put("x", data)
            assert storage.read("x") == data
            assert storage.list() == {"x": size}

    @pytest.mark.parametrize(("size", "room"), [(0, 0), (1, 0), (2**20, 2**20 + 1), (5**9, 5**9)])
    def test_a_file_is_read_into_memory(self, storage: Storage, size: int, room: int) -> None:
        data = random.Random(size).randbytes(size)
        storage.put("x", data)
        memory, seen = bytearray(room), bytearray()
        count = storage.read_into("x", memoryview(memory), seen.extend)
        assert count == min(size, room)
        assert seen == memory[:count] == data[:count]

    def test_ranges(self, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        # A store's answer that ends early may be cut, so it is requested again: only briefly here.
        monkeypatch.setenv("SHARDMILL_STORAGE_TIMEOUT", "2")
        storage = opened("out")
        data = bytes(range(256)) * 2**13
        storage.put("x", data)
        assert storage.read_range("x", 7, len(data) - 2) == data[7:-2]
        assert storage.read_range("x", 7, 7) == b""
        with pytest.raises(StorageError):
            storage.read_range("x", 10, len(data) + 1)

    def test_missing_files(self, storage: Storage) -> None:
        for path in ("gone", "no/such/folder/x"):
            with pytest.raises(FileNotFoundError):
                storage.read(path)
        with pytest.raises(FileNotFoundError):
            storage.read_into("gone", memoryview(bytearray(4)), bytes)
        with pytest.raises(FileNotFoundError):
            storage.read_range("gone", 0, 4)

    def test_a_local_file(self, storage: Storage, tmp_path: Path) -> None:
        file = tmp_path / "on scratch"
        file.write_bytes(b"whole")
        for _ in range(2):  # again, as after a worker was killed
            storage.put_file("train/00000/shard.00000.mds", file)
            assert storage.read("train/00000/shard.00000.mds") == b"whole"
        file.unlink()
        assert storage.list() == {"train/00000/shard.00000.mds": 5}
        assert storage.leftovers() == []

    def test_a_missing_local_file(self, storage: Storage, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="no such file"):
            storage.put_file("x", tmp_path / "gone")
        assert storage.list() == {}

    def test_list(self, storage: Storage, opened: Open) -> None:
        assert storage.list() == {}
        assert storage.list("parts") == {}
        neighbour = opened("out2")
        neighbour.put("other", b"1")
        for path in ("train/b/2", "train/a/1", "training/3", "manifest.json"):
            storage.put(path, path.encode())
        assert list(storage.list().items()) == [
            ("manifest.json", 13),
            ("train/a/1", 9),
            ("train/b/2", 9),
            ("training/3", 10),
        ]
        assert list(storage.list("train")) == ["train/a/1", "train/b/2"]
        assert list(storage.list("train/b")) == ["train/b/2"]
        assert storage.list("tra") == {}
        assert list(neighbour.list()) == ["other"]

    def test_remove(self, storage: Storage) -> None:
        storage.put("train/a", b"1")
        storage.put("train/b", b"1")
        storage.remove("train/a")
        assert list(storage.list()) == ["train/b"]
        storage.remove("train/b")
        assert storage.list() == {}
        storage.put("x", b"1")
        assert storage.leftovers() == []
        storage.remove_incoming()
        storage.close()
        assert list(storage.list()) == ["x"]

    def test_nothing_leads_out(self, storage: Storage) -> None:
        for path in ("../x", "/etc/x", "a/../../x", "train/..", ".."):
            for use in (
                lambda path=path: storage.put(path, b""),
                lambda path=path: storage.read(path),
                lambda path=path: storage.remove(path),
                lambda path=path: storage.list(path),
            ):
                with pytest.raises(StorageError, match="leads out of"):
                    use()

    def test_a_reader_never_sees_a_part(self, storage: Storage) -> None:
        contents = [bytes([number]) * 300_000 for number in range(12)]
        storage.put("x", contents[0])
        seen: set[bytes] = set()
        ended = threading.Event()

        def read() -> None:
            while not ended.is_set():
                seen.add(storage.read("x"))

        reader = threading.Thread(target=read)
        reader.start()
        for content in contents:
            storage.put("x", content)
        ended.set()
        reader.join()
        assert seen
        assert seen <= set(contents)

    def test_many_at_once(self, storage: Storage) -> None:
        threads = [
            threading.Thread(target=storage.put, args=(f"train/{n}", bytes([n]) * 1000))
            for n in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(storage.list("train")) == 16
        assert all(storage.read(f"train/{n}") == bytes([n]) * 1000 for n in range(16))


class TestExclusive:
    @pytest.fixture(autouse=True)
    def _short_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(holding, "_LOCK_WAIT_SECONDS", 0.3)

    def test_a_second_holder_is_refused(
        self, opened: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease, "_CONFIRM_SECONDS", 0.05)  # nobody else takes it meanwhile
        first, second = opened("out"), opened("out")
        with first.exclusive():
            first.require_held()
            with (
                pytest.raises(UsageError, match=f"Another run is writing to {first}"),
                second.exclusive(),
            ):
                pytest.fail("held twice")
            first.require_held()
            with opened("other").exclusive():
                pass
        with pytest.raises(RuntimeError), second.exclusive():  # an error frees it too
            raise RuntimeError
        for _ in range(2):
            with second.exclusive():
                second.require_held()

    def test_only_one_of_many_gets_it(self, opened: Open) -> None:
        held, most, refused = 0, 0, 0
        lock, start, go = threading.Lock(), threading.Barrier(6), threading.Event()

        def contend() -> None:
            nonlocal held, most, refused
            storage = opened("out")
            start.wait()
            try:
                with storage.exclusive():
                    with lock:
                        held += 1
                        most = max(most, held)
                    go.wait(240)
                    with lock:
                        held -= 1
            except UsageError:
                with lock:
                    refused += 1
                    if refused == 5:
                        go.set()

        threads = [threading.Thread(target=contend) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (most, refused) == (1, 5)
