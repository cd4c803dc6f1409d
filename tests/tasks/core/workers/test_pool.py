"""Worker processes: what they answer, and what a pool does when one dies."""

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from streaming_ext.base.errors import (
    SourceError,
    StorageError,
    TokenizerError,
    UsageError,
    WorkerDiedError,
)
from streaming_ext.store import LocalStorage
from streaming_ext.text.sources import SourceFile
from tasks.core.workers.messages import JobProgress
from tasks.core.workers.pool import InternalError, WorkerPool
from tasks.core.workers.tokenize_part import TokenizeJob
from tests.command_line import is_alive, wait_for
from tests.tasks.core.doubles import (
    EOT,
    ids_in,
    make_spec,
    record_in,
    write_job,
    write_source,
)
from tests.tasks.core.workers.waiting import GONE, Waiting, failed


def test_a_job_is_done(pool: WorkerPool, job: Callable[..., TokenizeJob], tmp_path: Path) -> None:
    source = write_source(tmp_path / "x.parquet", ["ab", None])
    tokenized = pool.run(job(source))
    assert (tokenized.counts.null_documents, tokenized.counts.tokens) == (1, 3)
    packed = record_in(tmp_path / "s").splits["train"]
    assert ids_in(tmp_path / "s", make_spec(), "train", packed) == [97, 98, EOT]

    storage = LocalStorage(tmp_path / "out")
    storage.create()
    written = pool.run(write_job(tmp_path / "s", storage.root))
    assert written.shard_bytes > 0
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
    """They keep their types, and cost no worker."""

    def test_of_a_job(
        self, pool: WorkerPool, job: Callable[..., TokenizeJob], tmp_path: Path
    ) -> None:
        good = job(write_source(tmp_path / "x.parquet", ["ab"]))
        pool.run(good)
        before = set(pool.pids)
        no_column = good.spec.model_copy(update={"text_column": "body"})
        for wrong, error, words in (
            (write_job(tmp_path / "s", tmp_path / "none"), StorageError, "no such file or dir"),
            (job(SourceFile(url="/none.parquet", size=1)), SourceError, r"none\.parquet: cannot"),
            (good.model_copy(update={"spec": no_column}), UsageError, "has no column 'body'"),
            (good.model_copy(update={"tokenizer_folder": tmp_path / "x"}), TokenizerError, "x"),
        ):
            with pytest.raises(error, match=words) as caught:
                pool.run(wrong)
            assert type(caught.value) is error
        assert pool.run(good).counts.tokens == 3
        assert set(pool.pids) == before

    def test_an_unexpected_one_carries_its_traceback(
        self, pool: WorkerPool, tmp_path: Path
    ) -> None:
        with pytest.raises(InternalError, match=r"(?s)Traceback.*move_part\.py.*FileNotFoundErr"):
            pool.run(write_job(tmp_path / "never tokenized", tmp_path))


def test_progress_arrives_in_order(
    pool: WorkerPool, job: Callable[..., TokenizeJob], tmp_path: Path
) -> None:
    source = write_source(tmp_path / "x.parquet", [" a b c d e f g" * 1000] * 1300)  # 18 MB
    heard: list[JobProgress] = []
    spec = make_spec(sequence_length=1024, shard_size=2**20)
    tokenized = pool.run(job(source).model_copy(update={"spec": spec}), heard.append)
    assert tokenized.counts.tokens == 1300 * 14_001
    assert heard[-1] == JobProgress(fraction=1.0, text_bytes=1300 * 14_000, tokens=1300 * 14_001)
    assert len(heard) > 1
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
    assert pool.run(job(source)).counts.tokens > 0
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
        assert pool.run(job(source)).counts.tokens > 0


def test_no_more_start_than_work_at_once(tmp_path: Path) -> None:
    with WorkerPool(3) as pool:
        assert pool.pids == []
        for _ in range(2):
            with pytest.raises(InternalError):
                pool.run(write_job(tmp_path / "never tokenized", tmp_path))
        assert len(pool.pids) == 1


def test_each_thread_gets_its_own_answer(
    pool: WorkerPool, job: Callable[..., TokenizeJob], threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    barrier = threading.Barrier(4)

    def ask(count: int) -> bool:
        source = write_source(tmp_path / f"{count}.parquet", ["a"] * count)
        barrier.wait(120)
        return pool.run(job(source, str(count))).counts.documents == count

    assert list(threads.map(ask, range(1, 5))) == [True] * 4
