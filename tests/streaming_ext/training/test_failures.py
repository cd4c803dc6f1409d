"""Every fault is an error within seconds: never a short epoch, never a hang."""

import multiprocessing
import os
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenLoader
from streaming_ext.base.errors import (
    CorruptDatasetError,
    DatasetError,
    StorageError,
    WorkerDiedError,
)
from streaming_ext.reading import prefetch
from streaming_ext.training import messages
from streaming_ext.training.workers import messages_of
from tests.command_line import wait_for
from tests.streaming_ext.conftest import tokens_of

SHARD = "00001/shard.00002.mds"


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(data[:-3])
    elif how == "longer":
        path.write_bytes(data + b"x")
    elif how == "empty":
        path.write_bytes(b"")
    else:
        data[-5] ^= 4
        path.write_bytes(data)


HOW = ("missing", "truncated", "longer", "empty", "flipped")


@pytest.mark.parametrize(
    ("source", "how", "workers"),
    [
        *((source, how, 0) for source in ("in place", "unpacked", "cached") for how in HOW),
        ("in place", "flipped", 2),
        ("unpacked", "truncated", 2),
        ("cached", "missing", 2),
    ],
)
def test_a_bad_shard_stops_the_epoch(
    raw, packed, copy, open_raw, open_cached, tmp_path, source, how, workers
) -> None:
    root = copy(raw if source == "in place" else packed)
    name = SHARD if source == "in place" else f"{SHARD}.zstd"
    damage(root / "train" / name, how)
    dataset = open_cached(remote=str(root)) if source == "cached" else open_raw(local=root)
    with pytest.raises(CorruptDatasetError, match=name.replace(".", r"\.")):
        list(StreamingTokenLoader(dataset, num_workers=workers))
    assert not list((tmp_path / "cache").rglob(SHARD))


@pytest.mark.parametrize(("how", "workers"), [*((how, 0) for how in HOW), ("flipped", 2)])
def test_a_bad_cached_copy_is_fetched_once_more(open_cached, tmp_path, how, workers) -> None:
    expected = tokens_of(open_cached())
    (path,) = tmp_path.rglob(SHARD)
    good = path.read_bytes()
    damage(path, how)
    assert tokens_of(StreamingTokenLoader(open_cached(), num_workers=workers)) == expected
    assert path.read_bytes() == good


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_a_worker_killed_is_an_error(open_raw, monkeypatch, start) -> None:
    monkeypatch.setattr(messages, "MESSAGE_BYTES", 1)  # one step per message
    loader = StreamingTokenLoader(
        open_raw(batch_size=1),
        num_workers=2,
        prefetch_factor=1,
        timeout=60,
        multiprocessing_context=start,
    )
    others = set(_children())
    iterator = iter(loader)
    next(iterator)
    worker = next(pid for pid in _children() if pid not in others)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="worker"):
        for _ in iterator:
            time.sleep(0.001)


def test_workers_that_end_hold_up_no_other() -> None:
    """A worker ends only after its messages have left: the others use the queue's lock too."""
    expected = [(worker, number) for worker in range(4) for number in range(3 * worker + 1)]
    for _ in range(40):
        sent = messages_of(
            lambda worker, _: ((worker, number) for number in range(3 * worker + 1)),
            num_workers=4,
            timeout=30,
            multiprocessing_context="fork",
        )
        assert sorted(sent) == expected


def _children() -> list[int | None]:
    """Return the ids of the workers, forked by this process or by the fork server."""
    return [child.pid for child in multiprocessing.active_children()]


def test_an_epoch_is_never_silently_short(open_raw, monkeypatch) -> None:
    dataset = open_raw()
    everything = dataset.batch_reader.batches

    def half(*arguments: Any, **settings: Any) -> Any:
        for number, batch in enumerate(everything(*arguments, **settings | {"ids_at_once": 0})):
            if number == 70:
                return
            yield batch

    monkeypatch.setattr(dataset.batch_reader, "batches", half)
    with pytest.raises(DatasetError, match="ended after 70 of 146 steps"):
        list(StreamingTokenLoader(dataset))


def test_what_no_thread_expected_is_raised_once_where_somebody_waits(
    open_raw, monkeypatch, capfd
) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("nobody expected this")
        yield

    monkeypatch.setattr("streaming_ext.training.loader.CACHED_BYTES", 1)
    monkeypatch.setattr(prefetch, "_first_uses", broken)
    dataset = open_raw()
    batches = iter(StreamingTokenLoader(dataset))
    with pytest.raises(RuntimeError, match="nobody expected this"):
        next(batches)
        dataset.close()  # waits for the threads
        next(batches)
    assert "Traceback" not in capfd.readouterr().err
    monkeypatch.undo()
    assert len(list(StreamingTokenLoader(open_raw()))) == 146


def test_a_cache_that_cannot_be_written_is_named(open_cached, tmp_path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(StorageError, match=r"cannot be locked.*local=.*remote="):
        tokens_of(open_cached())


def running(group: int) -> set[int]:
    """Return the processes of a group that have not ended."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state != "Z":
                found.add(int(entry.name))
    return found


def test_after_ten_kills_it_opens_again_and_nothing_is_left(
    open_raw, open_cached, tmp_path, monkeypatch
) -> None:
    cache, temporary = tmp_path / "cache", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def train_for_ever() -> None:
        os.setpgid(0, 0)  # its workers belong to its group
        dataset = open_cached(batch_size=2, cache_limit="3kb")
        while True:
            tokens_of(StreamingTokenLoader(dataset, num_workers=2))

    groups: list[int] = []
    ours: set[int] = set()
    for number in range(10):
        job = multiprocessing.get_context("fork").Process(target=train_for_ever)
        job.start()
        groups.append(job.pid)
        time.sleep(0.03 * number)
        if number == 9:  # even on a busy machine, kill one in the middle of reading
            wait_for(lambda: any(cache.rglob("*.mds")))
        ours |= running(job.pid)
        job.kill()
        job.join()
    wait_for(lambda: not any(map(running, groups)))  # workers see that their parent is gone
    assert len(ours) > 10
    assert tokens_of(open_cached(batch_size=2)) == tokens_of(open_raw(batch_size=2))
    # torch names its files in shared memory after processes; other programs have files there too.
    assert not ours & {int(path.name.split("_")[1]) for path in Path("/dev/shm").glob("torch_*")}  # noqa: S108
    assert not list(temporary.iterdir())
    assert not list(cache.rglob("*.tmp"))
