"""The answers of worker processes, and what a pool does when one dies."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from streaming_ext.base.errors import (
    InternalError,
    SourceError,
    StoppedError,
    StorageError,
    TokenizerError,
    UsageError,
    WorkerDiedError,
)
from streaming_ext.store import LocalStorage, holding
from streaming_ext.text.sources import SourceFile
from tasks.core.synthetic import make_documents
from tasks.core.workers.messages import JobProgress
from tasks.core.workers.pool import WorkerPool
from tasks.core.workers.tokenize_part import LoadTokenizerJob
from tests.command_line import PATIENCE_SECONDS, is_alive, wait_for
from tests.tasks.core.doubles import EOT, ids_in, make_spec, record_in, write_job, write_source
from tests.tasks.core.workers.waiting import GONE, failed


def test_a_job_is_done(pool, job, tmp_path) -> None:
    tokenized = pool.run(job())
    assert (tokenized.counts.null_documents, tokenized.counts.tokens) == (1, 3)
    packed = record_in(tmp_path / "s").splits["train"]
    assert ids_in(tmp_path / "s", make_spec(), "train", packed) == [97, 98, EOT]

    storage = LocalStorage(tmp_path / "out")
    storage.create()
    written = pool.run(write_job(tmp_path / "s", storage.root))
    assert written.shard_bytes > 0
    assert "parts/00000.json" in storage.list()


def test_jobs_run_in_parallel(pool, job, waiting, threads) -> None:
    futures = [threads.submit(pool.run, job(each.source, str(n))) for n, each in enumerate(waiting)]
    # Two jobs run at once; the third starts when one of them is done.
    wait_for(lambda: sum(each.reached() for each in waiting) == 2)
    time.sleep(0.1)
    assert sum(each.reached() for each in waiting) == 2
    [late] = [n for n, each in enumerate(waiting) if not each.reached()]
    waiting[late - 1].let_go()
    failed(futures[late - 1], SourceError, GONE)
    wait_for(waiting[late].reached)
    for each in waiting:
        each.let_go()
    for future in futures:
        failed(future, SourceError, GONE)
    assert len(pool.pids) == 2


def test_errors_keep_their_types_and_cost_no_worker(pool, job, tmp_path) -> None:
    good = job()
    pool.run(good)
    before = set(pool.pids)
    for wrong, error, words in (
        (write_job(tmp_path / "s", tmp_path / "none"), StorageError, "no such file or dir"),
        (job(SourceFile(url="/none.parquet", size=1)), SourceError, r"none\.parquet: cannot"),
        (job(text_column="body"), UsageError, "has no column 'body'"),
        (good.model_copy(update={"tokenizer_folder": tmp_path / "x"}), TokenizerError, "x"),
        (
            write_job(tmp_path / "never tokenized", tmp_path),  # an error that nobody expects
            InternalError,
            r"(?s)Traceback.*move_part\.py.*FileNotFoundErr",
        ),
    ):
        with pytest.raises(error, match=words) as caught:
            pool.run(wrong)
        assert type(caught.value) is error
    assert pool.run(good).counts.tokens == 3
    assert set(pool.pids) == before


def test_progress_arrives_in_order(pool, job, tmp_path) -> None:
    # There are two batches; each takes longer than the time between two messages.
    source = write_source(tmp_path / "x.parquet", ["a word " * 20] * 2**17)
    heard = []
    tokenized = pool.run(job(source, sequence_length=1024, shard_size=2**20), heard.append)
    assert tokenized.counts.text_bytes == 140 * 2**17
    assert heard[-1] == JobProgress(
        fraction=1.0,
        text_bytes=tokenized.counts.text_bytes,
        tokens=tokenized.counts.tokens,
        engine=tokenized.engine,
    )
    assert re.fullmatch(r"tiktoken [\d.]+, because it was asked for: .*", tokenized.engine)
    fractions = [progress.fraction for progress in heard]
    assert fractions == sorted(fractions)
    assert any(0 < fraction < 1 for fraction in fractions)


def test_the_pool_replaces_workers_that_are_killed(pool, job, waiting, threads) -> None:
    """One of two workers is killed while the other's job goes on; then the other is killed."""
    futures = [
        threads.submit(pool.run, job(each.source, str(n))) for n, each in enumerate(waiting[:2])
    ]
    wait_for(lambda: all(each.reached() for each in waiting[:2]))
    for pid, sent, said in zip(
        pool.pids,
        (signal.SIGKILL, signal.SIGTERM),
        ("when memory is out", "by SIGTERM"),
        strict=True,
    ):
        os.kill(pid, sent)
        wait_for(lambda: any(future.done() for future in futures))
        (ended,) = (future for future in futures if future.done())
        failed(ended, WorkerDiedError, said)
        futures.remove(ended)
        assert pid not in pool.pids
        assert pool.run(job()).counts.tokens == 3
    assert WorkerDiedError.transient
    assert len(pool.pids) == 1  # it replaced the first, and is free


def test_a_worker_that_dies_between_two_jobs(job) -> None:
    with WorkerPool(1) as pool:
        pool.run(job())
        process = psutil.Process(pool.pids[0])
        process.kill()
        wait_for(lambda: not is_alive(process))
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            pool.run(job())
        assert pool.run(job()).counts.tokens == 3


def test_each_thread_gets_its_own_answer(pool, job, threads, tmp_path) -> None:
    barrier = threading.Barrier(4)

    def documents_of(count: int) -> int:
        source = write_source(tmp_path / f"{count}.parquet", ["a"] * count)
        barrier.wait(120)
        return pool.run(job(source, str(count))).counts.documents

    assert list(threads.map(documents_of, range(1, 5))) == [1, 2, 3, 4]


def test_a_large_shard_size_takes_memory_for_what_there_is_to_hold(
    pool, job, tmp_path, monkeypatch
) -> None:
    """One error names the option if the memory is not enough for that."""
    source = write_source(tmp_path / "source.parquet", make_documents(60, seed=4))  # 100 KB
    large = job(source, shard_size=2 * 2**30, holdout_fraction=0.2, sequence_length=64)
    pool.run(large)
    splits = record_in(tmp_path / "s").splits
    assert {name: len(split.shards) for name, split in splits.items()} == {"train": 1, "holdout": 1}
    monkeypatch.setenv("SHARDMILL_WORKER_MEMORY", "120MiB")
    said = "--shard-size 2GiB does not(?s:.*)Lower --shard-size"
    with WorkerPool(1) as little, pytest.raises(UsageError, match=said) as caught:
        little.run(large)
    assert not caught.value.transient  # so the task is not tried again


# --- workers end with their pool, their parent or a signal; none is left behind

PARENT = """
import sys
from tasks.core.workers.messages import Job
from tasks.core.workers.pool import WorkerPool
WorkerPool(1).run(Job.from_line(sys.argv[1].encode()))
"""


def test_a_pool_is_stopped_while_jobs_run(job, waiting, threads) -> None:
    pool = WorkerPool(2)
    futures = [threads.submit(pool.run, job(each.source, str(n))) for n, each in enumerate(waiting)]
    wait_for(lambda: sum(each.reached() for each in waiting) == 2)
    processes = [psutil.Process(pid) for pid in pool.pids]
    assert len(processes) == 2
    began = time.monotonic()
    pool.stop()
    for future in futures:  # the one that waits for a free worker too
        failed(future, StoppedError, "the run was stopped")
    assert time.monotonic() - began < 60
    assert not [process for process in processes if is_alive(process)]
    assert pool.stopped
    assert pool.pids == []
    with pytest.raises(StoppedError):
        pool.run(job())
    pool.stop()  # a second stop does no harm


def test_no_more_workers_start_than_work_at_once_and_none_outlives_its_block(job) -> None:
    with pytest.raises(RuntimeError), WorkerPool(2) as pool:
        assert pool.pids == []
        for _ in range(2):
            pool.run(job())
        (pid,) = pool.pids
        process = psutil.Process(pid)
        raise RuntimeError
    assert pool.stopped
    assert not is_alive(process)


def test_a_worker_keeps_what_was_loaded_ahead(job, tokenizer_folder, tmp_path) -> None:
    folder = Path(shutil.copytree(tokenizer_folder, tmp_path / "saved"))
    made = job().model_copy(update={"tokenizer_folder": folder})
    ahead = LoadTokenizerJob(tokenizer_folder=folder, engine=made.engine)
    with WorkerPool(2) as pool:
        pool.run_ahead(ahead)
        pool.run(made)  # it waits, instead of loading the tokenizer in a second worker
        shutil.rmtree(folder)
        pool.run(made)
        pool.run_ahead(ahead.model_copy(update={"tokenizer_folder": tmp_path / "missing"}))
        pool.run(job())  # the job reports its own failure, if it has one
        assert len(pool.pids) == 1


def test_workers_hold_what_they_inherit(job, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(holding, "_LOCK_WAIT_SECONDS", 0.2)
    storage = LocalStorage(tmp_path / "out")
    storage.create()
    with storage.exclusive() as lock:
        pool = WorkerPool(1, inherited=[lock])
        pool.run(job())
    try:
        with pytest.raises(UsageError, match="Another run"), storage.exclusive():
            pytest.fail("the worker holds it")
    finally:
        pool.stop()
    with storage.exclusive():
        pass


def test_a_worker_ignores_ctrl_c(job, waiting, threads) -> None:
    # Without this, a worker would inherit that a test run in the background ignores Ctrl+C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with WorkerPool(1) as pool:
            future = threads.submit(pool.run, job(waiting[0].source))
            wait_for(waiting[0].reached)
            [pid] = pool.pids
            os.kill(pid, signal.SIGINT)
            time.sleep(0.2)
            assert not future.done()
            waiting[0].let_go()
            failed(future, SourceError, GONE)
            assert pool.pids == [pid]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_worker_ends_when_its_parent_is_killed(job, waiting) -> None:
    command = [sys.executable, "-c", PARENT, job(waiting[0].source).to_line()]
    parent = subprocess.Popen(command)
    try:
        wait_for(waiting[0].reached)
        [worker] = psutil.Process(parent.pid).children()
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not is_alive(worker))


def test_a_parent_that_sends_garbage(job) -> None:
    sent = job()
    good = sent.to_line().rstrip()
    garbage = [b"garbage", b"", b"\xff\xfe", b"{}", b'{"job": "dance"}', good[:-2] + b', "x": 1}}']
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "tasks.core.workers.worker"],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(b"\n".join([*garbage, good[:40]]))  # a line may arrive in two reads
        for _ in garbage:
            failure = sent.read_answer(worker.stdout.readline()).failure
            assert failure is not None
            assert failure.error == "InternalError"
            assert "Error: " in failure.message
        worker.stdin.write(good[40:] + b"\n")
        answer = sent.read_answer(worker.stdout.readline())
        while answer.progress is not None:  # sent before the result if the machine is busy
            answer = sent.read_answer(worker.stdout.readline())
        assert answer.result is not None
        assert answer.result.counts.tokens == 3
        worker.stdin.close()
        assert worker.wait(PATIENCE_SECONDS) == 0
        assert worker.stdout.read() == b""
