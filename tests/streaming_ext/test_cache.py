"""The cache: what a limit does to it, and several jobs that share a machine."""

import fcntl
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenLoader
from streaming_ext import cache as cache_module
from streaming_ext.errors import UsageError
from tests.streaming_ext.build import Built


def tokens(loader: StreamingTokenLoader, *, epochs: int) -> list[Any]:
    return [batch["tokens"].tolist() for _ in range(epochs) for batch in loader]


def bytes_below(folder: Path) -> int:
    """Of shards, whole ones and those being written."""
    held = 0
    for path in folder.rglob("*.mds*"):
        try:
            held += path.stat().st_size
        except FileNotFoundError:
            continue
    return held


@contextmanager
def watched(folder: Path) -> Iterator[Any]:
    """The most bytes of shards below a folder at any time of the block, and how often it looked.

    Looks from another process, under the lock that writers hold: else files come and go meanwhile.
    """
    context = multiprocessing.get_context("fork")
    seen = context.Array("q", 2)

    def watch() -> None:
        descriptor = None
        while True:
            time.sleep(0.001)
            if descriptor is None:
                for lock in folder.glob("*/.lock"):
                    descriptor = os.open(lock, os.O_RDWR)
                continue
            fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, cache_module._ROOM)
            seen[0] = max(seen[0], bytes_below(folder))
            seen[1] += 1
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, cache_module._ROOM)

    process = context.Process(target=watch)
    process.start()
    try:
        yield seen
    finally:
        process.kill()
        process.join()


class TestLimit:
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("place", ["remote", "unpacked"])
    def test_two_epochs_stay_below_it(
        self, packed: Built, copy: Any, open_raw: Any, tmp_path: Path, workers: int, place: str
    ) -> None:
        """In the order of an unlimited run, and without touching the dataset."""
        expected = tokens(StreamingTokenLoader(open_raw()), epochs=2)
        root = copy(packed)
        before = {path: path.stat().st_mtime_ns for path in root.rglob("*.*")}
        if place == "remote":
            settings, cache = {"remote": str(root), "local": tmp_path / "cache"}, tmp_path / "cache"
        else:
            settings, cache = {"local": root}, root / ".unpacked"
        limit = 8 * int(open_raw(**settings).reader.raw_sizes.max())
        dataset = open_raw(**settings, cache_limit=limit)
        with watched(cache) as held:
            loader = StreamingTokenLoader(dataset, num_workers=workers)
            assert tokens(loader, epochs=2) == expected
        peak, looks = held
        assert looks > 20
        assert limit // 2 < peak <= limit
        assert {path: path.stat().st_mtime_ns for path in before} == before

    def test_one_that_is_too_small_is_refused(
        self, packed: Built, open_raw: Any, tmp_path: Path
    ) -> None:
        settings = {"remote": str(packed.root), "local": tmp_path}
        largest = int(open_raw(**settings).reader.raw_sizes.max())
        with pytest.raises(UsageError, match=rf"`cache_limit` leaves .* shard has {largest}\."):
            open_raw(**settings, cache_limit=4 * largest - 1)
        assert not list(tmp_path.iterdir())
