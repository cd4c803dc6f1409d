"""Worker processes: what they answer, how they end, and that none is left behind.

A job whose source is a named pipe waits there until the test opens the other end.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from streaming_ext.dataset.spec import TokenizerIdentity
from streaming_ext.errors import (
    SourceError,
    StoppedError,
    StorageError,
    TokenizerError,
    UsageError,
    WorkerDiedError,
)
from streaming_ext.text.sources import SourceFile
from streaming_ext.text.tokenizer.rank_file import rank_file_bytes
from streaming_ext.text.tokenizer.tokenizer import load_tokenizer
from tasks.core.storage import LocalStorage
from tasks.core.storage import local as storage_module
from tasks.core.workers.jobs import TokenizeJob
from tasks.core.workers.messages import HELD, JobProgress
from tasks.core.workers.pool import InternalError, Worker, WorkerPool
from tests.command_line import PATIENCE_SECONDS, is_alive, wait_for
from tests.tasks.core.doubles import (
    EOT,
    ids_in,
    make_spec,
    tokenize_job,
    write_job,
    write_source,
)

GONE = "the file is gone"
PARENT = """
import sys
from tasks.core.workers.jobs import JOB
from tasks.core.workers.pool import WorkerPool
WorkerPool(1).run(JOB.validate_json(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved tokenizer of one id a byte."""
    folder = tmp_path_factory.mktemp("tokenizer")
    ranks = folder / "bytes.tiktoken"
    ranks.write_bytes(rank_file_bytes({bytes([byte]): byte for byte in range(256)}))
    load_tokenizer(str(ranks), pattern="gpt2").save(folder / "saved")
    return folder / "saved"


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Two workers that tests share: whatever one of them did, the next must find it working."""
    with WorkerPool(2) as made:
        yield made


@pytest.fixture
def job(tmp_path: Path, tokenizer_folder: Path) -> Callable[..., TokenizeJob]:
    """A job on a source file."""

    def make(source: SourceFile, name: str = "s") -> TokenizeJob:
        made = tokenize_job(source, tmp_path / name, make_spec())
        return made.model_copy(update={"tokenizer_folder": str(tokenizer_folder)})

    return make


class Waiting:
    """A source that a worker waits for, until it is let go."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.source = SourceFile(url=str(path), size=0)
        self._end = -1

    def reached(self) -> bool:
        """Whether a worker has come to it; it is held there."""
        if self._end < 0:
            try:
                self._end = os.open(self.source.url, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno not in {errno.ENXIO, errno.ENOENT}:  # nobody reads it, or ever will
                    raise
        return self._end >= 0

    def let_go(self) -> None:
        """The worker comes to the end of the file, and then finds it gone."""
        Path(self.source.url).unlink(missing_ok=True)
        if self._end >= 0:
            os.close(self._end)
            self._end = -1


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.fixture
def waiting(tmp_path: Path, threads: ThreadPoolExecutor) -> Iterator[list[Waiting]]:
    made = [Waiting(tmp_path / f"pipe{number}") for number in range(3)]
    yield made
    for each in made:  # also where the test failed: the threads wait for them
        each.reached()
        each.let_go()


def failed(future: "Future[Any]", kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        future.result(timeout=240)


def test_a_job_is_done(pool: WorkerPool, job: Callable[..., TokenizeJob], tmp_path: Path) -> None:
    source = write_source(tmp_path / "x.parquet", ["ab", None])
    tokenized = pool.run(job(source))
    assert (tokenized.rows, tokenized.tokens) == (2, 3)
    packed = tokenized.splits["train"]
    assert ids_in(tmp_path / "s", make_spec(), "train", packed) == [97, 98, EOT]

    storage = LocalStorage(tmp_path / "out")
    storage.create()
    written = pool.run(write_job(tmp_path / "s", storage.root, make_spec()))
    assert written.shards == 1
    assert "parts/00000.json" in storage.list()


def test_jobs_run_in_parallel(
    pool: WorkerPool,
    job: Callable[..., TokenizeJob],
    waiting: list[Waiting],
    threads: ThreadPoolExecutor,
) -> None:
    futures = [threads.submit(pool.run, job(each.source, str(n))) for n, each in enumerate(waiting)]
    # Two at once, the third when one of them is done.
    wait_for(lambda: sum(each.reached() for each in waiting) == 2)
    time.sleep(0.1)
    assert sum(each.reached() for each in waiting) == 2
    assert len(pool.pids) == 2
    [late] = [n for n, each in enumerate(waiting) if not each.reached()]
    waiting[late - 1].let_go()
    failed(futures[late - 1], SourceError, GONE)
    wait_for(waiting[late].reached)
    for each in waiting:
        each.let_go()
    for future in futures:
        failed(future, SourceError, GONE)
    assert len(pool.pids) == 2


class TestErrors:
    """Come back as what they were."""

    def test_source(self, pool: WorkerPool, job: Callable[..., TokenizeJob]) -> None:
        with pytest.raises(SourceError, match=r"gone\.parquet: cannot be read"):
            pool.run(job(SourceFile(url="/nonexistent/gone.parquet", size=1)))

    def test_usage(self, pool: WorkerPool, job: Callable[..., TokenizeJob], tmp_path: Path) -> None:
        wanted = job(write_source(tmp_path / "x.parquet", ["ab"]))
        spec = wanted.spec.model_copy(update={"text_column": "body"})
        with pytest.raises(UsageError, match="has no column 'body'") as caught:
            pool.run(wanted.model_copy(update={"spec": spec}))
        assert type(caught.value) is UsageError

    def test_storage(
        self, pool: WorkerPool, job: Callable[..., TokenizeJob], tmp_path: Path
    ) -> None:
        pool.run(job(write_source(tmp_path / "x.parquet", ["ab"])))
        with pytest.raises(StorageError, match="no such file or directory") as caught:
            pool.run(write_job(tmp_path / "s", tmp_path / "nowhere", make_spec()))
        assert caught.value.fatal

    def test_tokenizer(
        self, pool: WorkerPool, job: Callable[..., TokenizeJob], tmp_path: Path
    ) -> None:
        wanted = job(write_source(tmp_path / "x.parquet", ["ab"]))
        with pytest.raises(TokenizerError):
            pool.run(wanted.model_copy(update={"tokenizer_folder": str(tmp_path / "none")}))

    def test_what_nobody_expected_carries_its_traceback(
        self, pool: WorkerPool, tmp_path: Path
    ) -> None:
        with pytest.raises(InternalError) as caught:
            pool.run(write_job(tmp_path / "never tokenized", tmp_path, make_spec()))
        assert "Traceback (most recent call last)" in str(caught.value)
        assert "write_part.py" in str(caught.value)
        assert "FileNotFoundError" in str(caught.value)

    def test_cost_no_worker(
        self, pool: WorkerPool, job: Callable[..., TokenizeJob], tmp_path: Path
    ) -> None:
        source = write_source(tmp_path / "x.parquet", ["ab"])
        pool.run(job(source))
        before = set(pool.pids)
        for _ in range(3):
            with pytest.raises(SourceError):
                pool.run(job(SourceFile(url=source.url, size=1)))
            pool.run(job(source))
        assert set(pool.pids) == before


def test_progress_arrives_in_order(
    pool: WorkerPool, job: Callable[..., TokenizeJob], tmp_path: Path
) -> None:
    source = write_source(tmp_path / "x.parquet", [" a b c d e f g" * 1000] * 1300)  # 18 MB
    heard: list[JobProgress] = []
    spec = make_spec(sequence_length=1024, shard_size=2**20)
    tokenized = pool.run(job(source).model_copy(update={"spec": spec}), heard.append)
    assert tokenized.progress == JobProgress(
        fraction=1.0, text_bytes=1300 * 14_000, tokens=1300 * 14_001
    )
    assert heard
    fractions = [progress.fraction for progress in heard]
    assert fractions == sorted(fractions)
    assert 0 < fractions[0] < 1


@pytest.mark.parametrize(
    ("sent", "said"), [(signal.SIGKILL, "when memory is out"), (signal.SIGTERM, "by SIGTERM")]
)
def test_a_worker_that_is_killed(
    pool: WorkerPool,
    job: Callable[..., TokenizeJob],
    waiting: list[Waiting],
    threads: ThreadPoolExecutor,
    tmp_path: Path,
    sent: signal.Signals,
    said: str,
) -> None:
    futures = [
        threads.submit(pool.run, job(each.source, str(n))) for n, each in enumerate(waiting[:2])
    ]
    wait_for(lambda: all(each.reached() for each in waiting[:2]))
    killed, other = pool.pids
    os.kill(killed, sent)
    wait_for(lambda: any(future.done() for future in futures))
    [dead] = [future for future in futures if future.done()]
    failed(dead, WorkerDiedError, said)
    assert WorkerDiedError.transient

    # The pool goes on: with the other worker, and a new one in the place of the dead.
    assert pool.pids == [other]
    source = write_source(tmp_path / "x.parquet", ["ab"])
    assert pool.run(job(source)).tokens > 0
    assert len(pool.pids) == 2
    assert killed not in pool.pids
    for each in waiting:
        each.let_go()
    [alive] = [future for future in futures if future is not dead]
    failed(alive, SourceError, GONE)


def test_a_worker_that_dies_between_two_jobs(
    job: Callable[..., TokenizeJob], tmp_path: Path
) -> None:
    source = write_source(tmp_path / "x.parquet", ["ab"])
    with WorkerPool(1) as pool:
        pool.run(job(source))
        process = psutil.Process(pool.pids[0])
        process.kill()
        wait_for(lambda: not is_alive(process))
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            pool.run(job(source))
        assert pool.run(job(source)).tokens > 0


def test_a_worker_that_dies_before_it_is_ready_is_replaced(
    tokenizer_folder: Path, job: Callable[..., TokenizeJob], tmp_path: Path
) -> None:
    with WorkerPool(2) as made:
        first = made.pids
        os.kill(first[0], signal.SIGKILL)
        made.prepare(tokenizer_folder, "reference")
        assert first[0] not in made.pids
        source = write_source(tmp_path / "source.parquet", ["a", "b"])
        assert [made.run(job(source)).tokens for _ in range(2)] == [4, 4]


class TestStop:
    def test_while_jobs_run(
        self,
        job: Callable[..., TokenizeJob],
        waiting: list[Waiting],
        threads: ThreadPoolExecutor,
        tmp_path: Path,
    ) -> None:
        pool = WorkerPool(2)
        futures = [
            threads.submit(pool.run, job(each.source, str(n))) for n, each in enumerate(waiting)
        ]
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
            pool.run(job(write_source(tmp_path / "x.parquet", ["ab"])))
        pool.stop()  # once more does no harm

    def test_when_the_block_ends(self, job: Callable[..., TokenizeJob], tmp_path: Path) -> None:
        source = write_source(tmp_path / "x.parquet", ["ab"])
        with pytest.raises(RuntimeError), WorkerPool(2) as pool:
            pool.run(job(source))
            process = psutil.Process(pool.pids[0])
            raise RuntimeError
        assert pool.stopped
        assert not is_alive(process)

    def test_before_any_job(self) -> None:
        with WorkerPool(3) as pool:
            processes = [psutil.Process(pid) for pid in pool.pids]
            assert len(processes) == 3  # started at once
            assert not pool.stopped
        assert pool.stopped
        assert not [process for process in processes if is_alive(process)]


def test_workers_hold_what_they_inherit(
    job: Callable[..., TokenizeJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "_LOCK_WAIT_SECONDS", 0.2)
    storage = LocalStorage(tmp_path / "out")
    storage.create()
    with storage.exclusive() as lock:
        pool = WorkerPool(1, inherited=[lock])
        pool.run(job(write_source(tmp_path / "x.parquet", ["ab"])))
    try:
        with pytest.raises(UsageError, match="Another run"), storage.exclusive():
            pytest.fail("the worker holds it")
    finally:
        pool.stop()
    with storage.exclusive():
        pass


def test_a_worker_ignores_ctrl_c(
    job: Callable[..., TokenizeJob], waiting: list[Waiting], threads: ThreadPoolExecutor
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


def test_a_worker_ends_when_its_parent_is_killed(
    job: Callable[..., TokenizeJob], waiting: list[Waiting]
) -> None:
    command = [sys.executable, "-c", PARENT, job(waiting[0].source).model_dump_json()]
    parent = subprocess.Popen(command)
    try:
        wait_for(waiting[0].reached)
        [worker] = psutil.Process(parent.pid).children()
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not is_alive(worker))


def test_a_parent_that_sends_garbage(job: Callable[..., TokenizeJob], tmp_path: Path) -> None:
    sent = job(write_source(tmp_path / "x.parquet", ["ab"]))
    good = sent.model_dump_json().encode()
    garbage = [b"garbage", b"", b"\xff\xfe", b"{}", b'{"job": "dance"}', good[:-1] + b', "x": 1}']
    jobs, stdin = socket.socketpair()
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "tasks.core.workers.worker"],
        stdin=stdin,
        stdout=subprocess.PIPE,
    )
    stdin.close()
    with worker, jobs:
        assert worker.stdout is not None
        socket.send_fds(jobs, [HELD], [])
        for line in garbage:
            jobs.sendall(line + b"\n")
        jobs.sendall(good[:40])  # a line may arrive in pieces
        for _ in garbage:
            failure = sent.read_answer(worker.stdout.readline()).failure
            assert failure is not None
            assert failure.error == "InternalError"
            assert "ValidationError" in failure.message
        jobs.sendall(good[40:] + b"\n")
        answer = sent.read_answer(worker.stdout.readline())
        while answer.progress is not None:  # told on the way, where the machine is busy
            answer = sent.read_answer(worker.stdout.readline())
        assert answer.result is not None
        assert answer.result.tokens == 3
        jobs.close()
        assert worker.wait(PATIENCE_SECONDS) == 0
        assert worker.stdout.read() == b""


def test_a_worker_that_nobody_sends_jobs_to_ends_at_once() -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "tasks.core.workers.worker"],
        input=b"",
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 1
    assert b"not a socket" in ended.stderr or b"non-socket" in ended.stderr


def test_a_worker_started_before_its_pool(
    job: Callable[..., TokenizeJob], tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """It holds what the pool opened later, and ends with the pool."""
    worker = Worker()
    storage = LocalStorage(tmp_path / "out")
    storage.create()
    with storage.exclusive() as lock:
        pool = WorkerPool(2, inherited=[lock], first=worker)
        source = write_source(tmp_path / "x.parquet", ["ab"])
        assert worker.pid in pool.pids
        assert len(pool.pids) == 2
        for ended in [threads.submit(pool.run, job(source, name)) for name in "ab"]:
            assert ended.result(PATIENCE_SECONDS).tokens == 3
    pool.stop()
    assert not psutil.pid_exists(worker.pid)


def test_no_more_light_ones_start_than_work_at_once(tmp_path: Path) -> None:
    with WorkerPool(3, light=True) as pool:
        assert pool.pids == []
        for _ in range(2):
            with pytest.raises(InternalError):
                pool.run(write_job(tmp_path / "never tokenized", tmp_path, make_spec()))
        assert len(pool.pids) == 1


def test_each_thread_gets_its_own_answer(
    pool: WorkerPool, job: Callable[..., TokenizeJob], threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    barrier = threading.Barrier(4)

    def ask(count: int) -> bool:
        source = write_source(tmp_path / f"{count}.parquet", ["a"] * count)
        barrier.wait(120)
        return pool.run(job(source, str(count))).rows == count

    assert list(threads.map(ask, range(1, 5))) == [True] * 4


def test_the_saved_tokenizer_is_the_one_that_the_tests_expect(tokenizer_folder: Path) -> None:
    from streaming_ext.text.tokenizer.tokenizer import open_saved

    description = open_saved(tokenizer_folder).description()
    assert TokenizerIdentity.model_validate(description).eot_id == EOT
