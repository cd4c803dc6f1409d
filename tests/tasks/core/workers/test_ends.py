"""How worker processes end: with their pool, their parent or a signal; none is left behind."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from streaming_ext.base.errors import (
    SourceError,
    StoppedError,
    UsageError,
)
from streaming_ext.store import LocalStorage, holding
from tasks.core.workers.pool import WorkerPool
from tests.command_line import PATIENCE_SECONDS, is_alive, wait_for
from tests.tasks.core.workers.waiting import GONE, MakeJob, Waiting, failed

PARENT = """
import sys
from tasks.core.workers.messages import Job
from tasks.core.workers.pool import WorkerPool
WorkerPool(1).run(Job.from_line(sys.argv[1].encode()))
"""


def test_a_pool_is_stopped_while_jobs_run(
    job: MakeJob, waiting: list[Waiting], threads: ThreadPoolExecutor
) -> None:
    pool = WorkerPool(2)
    futures = [threads.submit(pool.run, job(each.source, str(n))) for n, each in enumerate(waiting)]
    wait_for(lambda: sum(each.reached() for each in waiting) == 2)
    processes = [psutil.Process(pid) for pid in pool.pids]
    assert len(processes) == 2
    began = time.monotonic()
    pool.stop()
    for future in futures:  # also the one that waits for a free worker
        failed(future, StoppedError, "the run was stopped")
    assert time.monotonic() - began < 60
    assert not [process for process in processes if is_alive(process)]
    assert pool.stopped
    assert pool.pids == []
    with pytest.raises(StoppedError):
        pool.run(job())
    pool.stop()  # once more does no harm


def test_a_pool_is_stopped_when_its_block_ends(job: MakeJob) -> None:
    with pytest.raises(RuntimeError), WorkerPool(2) as pool:
        pool.run(job())
        process = psutil.Process(pool.pids[0])
        raise RuntimeError
    assert pool.stopped
    assert not is_alive(process)


def test_workers_hold_what_they_inherit(
    job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_worker_ignores_ctrl_c(
    job: MakeJob, waiting: list[Waiting], threads: ThreadPoolExecutor
) -> None:
    # Else a worker inherits that a test run in the background ignores it too.
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


def test_a_worker_ends_when_its_parent_is_killed(job: MakeJob, waiting: list[Waiting]) -> None:
    command = [sys.executable, "-c", PARENT, job(waiting[0].source).to_line()]
    parent = subprocess.Popen(command)
    try:
        wait_for(waiting[0].reached)
        [worker] = psutil.Process(parent.pid).children()
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not is_alive(worker))


def test_a_parent_that_sends_garbage(job: MakeJob) -> None:
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
        while answer.progress is not None:  # sent on the way, where the machine is busy
            answer = sent.read_answer(worker.stdout.readline())
        assert answer.result is not None
        assert answer.result.counts.tokens == 3
        worker.stdin.close()
        assert worker.wait(PATIENCE_SECONDS) == 0
        assert worker.stdout.read() == b""
