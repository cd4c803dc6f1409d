"""The cache under a limit, and with several jobs on a machine."""

import contextlib
import errno
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from torch.utils.data import DataLoader

from streaming_ext import StreamingTokenDataset, StreamingTokenLoader
from streaming_ext.base.errors import StorageError, UsageError
from streaming_ext.reading.cache import ROOM
from tests.streaming_ext.conftest import tokens_of
from tests.streaming_ext.processes import in_processes

USER = 54_321  # a number that no user has


def bytes_below(folder: Path, *, aside: bool = False) -> int:
    """Return the bytes of shards, whole or partly written, and on request of those moved aside."""
    held = 0
    for path in [*folder.rglob("*.mds*"), *(folder.rglob("*.evicted") if aside else ())]:
        try:
            held += path.stat().st_size
        except FileNotFoundError:
            continue
    return held


@contextlib.contextmanager
def watched(folder: Path, *, aside: bool = False) -> Iterator[Any]:
    """Yield the most bytes of shards below a folder so far, and how often they were counted.

    Another process counts, under the lock that writers hold: otherwise files come and go meanwhile.
    """
    context = multiprocessing.get_context("fork")
    seen = context.Array("q", 2, lock=False)  # its only writer may be killed while it writes

    def watch() -> None:
        while True:
            time.sleep(0.001)
            for lock in folder.glob(f"*/{ROOM}"):
                with FileLock(lock).acquire(poll_interval=0.0001):
                    seen[0] = max(seen[0], bytes_below(folder, aside=aside))
                    seen[1] += 1

    process = context.Process(target=watch)
    process.start()
    try:
        yield seen
    finally:
        process.kill()
        process.join()


def owners_below(folder: Path) -> set[int]:
    """Return the owners of everything below a folder; files may come and go meanwhile."""
    owners = set()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            owners.add(path.stat().st_uid)
    return owners


def read_as(rank: int, open_raw: Any, remote: Path, caches: Path, start: Any) -> list[Any]:
    """Read an epoch with each loader, as a separate user if this one may change users."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(USER + rank)
        os.setuid(USER + rank)
    dataset = open_raw(remote=str(remote), local=caches / str(os.getuid()) / str(rank))
    start.wait(240)
    ours = tokens_of(StreamingTokenLoader(dataset, num_workers=2))
    return ours + tokens_of(DataLoader(dataset, batch_size=4, num_workers=2))


def test_jobs_of_two_users_do_not_meet(packed, open_raw, monkeypatch, tmp_path_factory) -> None:
    """They read one dataset at once, with one temporary folder, and leave nothing there."""
    start = multiprocessing.get_context("fork").Barrier(2)
    above = tmp_path_factory.getbasetemp().parents
    open_to_all = next(folder for folder in above if folder.stat().st_mode & 0o007 == 0o007)
    with tempfile.TemporaryDirectory(dir=open_to_all) as name:
        everyone = Path(name)
        for folder in (everyone, everyone / "tmp", everyone / "caches"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o1777)
        shutil.copytree(packed.root, everyone / "data", ignore=shutil.ignore_patterns(".unpacked"))
        monkeypatch.setattr(tempfile, "tempdir", str(everyone / "tmp"))
        folders = everyone / "data", everyone / "caches"
        one, other = in_processes(2, read_as, open_raw, *folders, start)
        assert not {USER, USER + 1} & owners_below(Path("/dev/shm"))  # noqa: S108
        assert not list((everyone / "tmp").iterdir())
        assert len(owners_below(everyone / "caches") - {0}) == (2 if os.getuid() == 0 else 1)
    expected = tokens_of(open_raw())
    assert one[: len(expected)] == expected
    assert one == other


class TestLimit:
    @pytest.mark.parametrize(("in_a_cache", "workers"), [(True, 2), (False, 0)])
    def test_the_smallest_one_gives_the_same_batches_and_holds(
        self, packed, copy, open_raw, tmp_path, in_a_cache, workers
    ) -> None:
        """A separate process reads: a memory fault would end it. The dataset does not change."""
        root = copy(packed)
        before = {path: path.stat().st_mtime_ns for path in root.rglob("*.*")}
        settings, cache = {"local": root}, root / ".unpacked"
        if in_a_cache:
            settings, cache = {"remote": str(root), "local": tmp_path / "cache"}, tmp_path / "cache"
        limit = 4 * int(open_raw(local=packed.root).reader.raw_sizes.max())

        def read(**more: Any) -> list[Any]:
            dataset = open_raw(
                batch_size=64,
                shuffle_block_size=16,
                epoch_size=128,
                extras=["starts_inside", "targets"],
                **more,
            )
            loader = StreamingTokenLoader(dataset, num_workers=workers)
            return [
                {name: values.tolist() for name, values in batch.items()}
                for _ in range(2)
                for batch in loader
            ]

        with watched(cache) as held:
            (found,) = in_processes(1, lambda _: read(**settings, cache_limit=limit))
        assert len(found) == 4
        assert found == read()
        peak, looks = held
        assert looks > 20
        assert limit // 2 < peak <= limit
        assert {path: path.stat().st_mtime_ns for path in before} == before

    def test_what_is_read_in_place_is_never_touched(self, raw, copy, open_raw) -> None:
        root = copy(raw)
        dataset = open_raw(local=root, cache_limit="1mb")
        before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
        assert len(tokens_of(dataset)) == 146
        assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before

    @pytest.mark.parametrize("packing", [None, "best_fit"])
    def test_masks_of_a_worker_s_block_hold_no_more_than_a_step(
        self, packed, open_raw, open_cached, tmp_path, packing
    ) -> None:
        """A worker makes many steps at once, but must not hold the shards of all of them."""
        settings = {
            "extras": ["targets", "position_ids", "cu_seqlens", "sequence_ids"],
            "packing": packing,
            "sequence_length": 20,
            "batch_size": 2,
            "num_canonical_nodes": 2,
            "predownload": 1,
        }
        limit = 12 * int(open_raw().reader.raw_sizes.max())
        limited = open_cached(**settings, cache_limit=limit)

        def made(dataset: StreamingTokenDataset) -> list[dict[str, Any]]:
            reader = dataset.batch_reader
            raw = reader.batches(dataset.start_cursor(), [(range(80), 64)], ids_at_once=None)
            return [batch for each in raw for batch in reader.split(each, rows=2)]

        with watched(tmp_path / "cache", aside=True) as held:
            found = made(limited)
        assert 0 < held[0] <= limit
        expected = made(open_raw(**settings, local=packed.root))
        assert len(found) == len(expected) == 80
        for one, other in zip(found, expected, strict=True):
            assert one.keys() == other.keys()
            assert all((one[name] == other[name]).all() for name in one)

    def test_one_that_is_too_small_is_refused(self, open_cached, tmp_path) -> None:
        largest = int(open_cached().reader.raw_sizes.max())
        with pytest.raises(UsageError, match=rf"`cache_limit` leaves .* shard has {largest}\."):
            open_cached(cache_limit=4 * largest - 1)
        assert not list(tmp_path.iterdir())

    def test_a_full_cache_that_may_only_be_read_is_read(self, open_cached, monkeypatch) -> None:
        """The system lets only who may write to a file mark it as used now."""
        expected = tokens_of(open_cached())

        def refuse(*_: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(os, "utime", refuse)
        assert tokens_of(open_cached(cache_limit="1mb")) == expected

    def test_what_is_still_mapped_counts(self, open_cached, tmp_path) -> None:
        """A deleted file takes disk space until nobody maps it."""
        small = open_cached(cache_limit=6 * 500, batch_size=1, shuffle=False, extras=["targets"])
        most = 0
        for batch in islice(StreamingTokenLoader(small), 60):
            assert batch["tokens"].shape == (1, 8)
            mapped = {
                line.split(maxsplit=5)[5]: 500
                for line in Path("/proc/self/maps").read_text().splitlines()
                if str(tmp_path) in line and line.endswith("(deleted)")
            }
            most = max(most, bytes_below(tmp_path) + sum(mapped.values()))
        largest = int(small.reader.raw_sizes.max())
        assert largest <= 500
        assert 3 * largest < most <= 6 * 500

    def test_what_another_process_reads_is_moved_aside_and_counts(
        self, open_cached, tmp_path
    ) -> None:
        settings = {"cache_limit": 1200, "batch_size": 1}  # four shards of 277 bytes
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Event(), context.Event()

        def hold() -> None:
            reader = open_cached(**settings).reader
            held = reader.shards.views(range(4))
            theirs.set()
            ours.wait(30)
            del held, reader

        process = context.Process(target=hold)
        process.start()
        try:
            assert theirs.wait(30)
            dataset = open_cached(**settings)
            for shard in range(4, 30):
                dataset.reader.shards.views([shard])
                # The four that are read, and one of ours.
                assert bytes_below(tmp_path, aside=True) <= 5 * 277
            aside = list(tmp_path.rglob("*.evicted"))
            assert aside
            assert all(path.stat().st_size for path in aside)
        finally:
            ours.set()
            process.join()
        dataset.reader.shards.views([31])
        assert not list(tmp_path.rglob("*.evicted"))


def test_two_datasets_of_one_process_share_a_cache(open_cached, tmp_path, monkeypatch) -> None:
    """POSIX locks do not separate them: each could take the other's file for a leftover."""
    write = Path.write_bytes

    def write_late(path: Path, data: bytes) -> int:
        count = write(path, data)
        time.sleep(0.02)
        return count

    monkeypatch.setattr(Path, "write_bytes", write_late)
    caches = [open_cached().reader.caches[0] for _ in range(2)]
    with ThreadPoolExecutor(4) as threads:
        for shard in range(10):
            for done in [threads.submit(cache.fetch, shard) for cache in caches * 2]:
                done.result()
            assert caches[0].path(shard).exists()
    assert not list(tmp_path.rglob("*.tmp"))


def test_what_is_no_file_is_an_error(open_cached) -> None:
    shard = open_cached().reader.caches[0].path(0)
    shard.mkdir(parents=True)
    with pytest.raises(StorageError, match=f"Shard .* cannot be mapped: .*{shard}"):
        open_cached().get_item(0)
    shard.rmdir()
    assert len(open_cached().get_item(0)["tokens"]) == 8
