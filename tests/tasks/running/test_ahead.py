"""Parts that are begun before there is a task for them: what becomes of them in any case."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from streaming_ext.errors import StoppedError, WorkerDiedError
from streaming_ext.text.sources import list_sources
from tasks.core.config import ShardConfig
from tasks.core.planning.look import look, take_up
from tasks.core.storage import LocalStorage
from tasks.core.workers.jobs import TokenizedPart, TokenizeJob
from tasks.core.workers.messages import Job, JobProgress, R
from tasks.core.workers.own_threads import OwnThreads
from tasks.running.ahead import Ahead
from tasks.tokenize import tokenize_job
from tests.command_line import PATIENCE_SECONDS


class Slow(OwnThreads):
    """Does nothing but what the test says, when the test says so."""

    def __init__(self, done: Callable[[], object]) -> None:
        super().__init__(1)
        self.began, self.go = threading.Event(), threading.Event()
        self._done = done
        self.tell: Callable[[JobProgress], None] = lambda _: None

    def run(self, job: Job[R], on_progress: Callable[[JobProgress], None] = lambda _: None) -> R:
        self.tell = on_progress
        self.began.set()
        assert self.go.wait(PATIENCE_SECONDS)
        return self._done()  # type: ignore[return-value]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def job(tmp_path: Path, vocabulary: Path, sources: Path) -> TokenizeJob:
    config = ShardConfig(
        sources=(str(sources),), output=str(tmp_path / "out"), tokenizer=str(vocabulary),
        pattern="gpt2", engine="reference",
    )  # fmt: skip
    storage = LocalStorage(tmp_path / "out")
    storage.create()
    listed = tuple(list_sources(config.sources))
    plan = take_up(look(config, storage, listed), storage, listed)
    return tokenize_job(plan, storage, plan.part(0))


def prepared(error: Exception | None = None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


def test_a_task_takes_a_part_once_and_hears_of_it_from_then_on(
    threads: ThreadPoolExecutor, job: TokenizeJob
) -> None:
    made = TokenizedPart.model_construct(part=0)
    pool = Slow(lambda: made)
    ahead = Ahead(threads, pool)
    ahead.begin(job, prepared())
    assert pool.began.wait(PATIENCE_SECONDS)
    heard: list[float] = []

    def listen(progress: JobProgress) -> None:
        heard.append(progress.fraction)
        pool.go.set()

    pool.tell(JobProgress(fraction=0.1))  # to nobody
    assert ahead.take(1, listen) is None  # of another part
    with ThreadPoolExecutor(1) as task:
        taken = task.submit(ahead.take, 0, listen)
        while not taken.done():
            pool.tell(JobProgress(fraction=0.5))
        assert taken.result() is made
    assert set(heard) == {0.5}
    assert ahead.take(0, listen) is None


def test_a_part_that_failed_is_told_to_its_task_and_done_anew_by_the_next(
    threads: ThreadPoolExecutor, job: TokenizeJob
) -> None:
    def die() -> None:
        raise WorkerDiedError("the worker process was killed by SIGKILL")

    pool = Slow(die)
    pool.go.set()
    ahead = Ahead(threads, pool)
    ahead.begin(job, prepared())
    with pytest.raises(WorkerDiedError):
        ahead.take(0, lambda _: None)
    assert ahead.take(0, lambda _: None) is None


def test_nothing_is_begun_where_the_workers_cannot_be_prepared(
    threads: ThreadPoolExecutor, job: TokenizeJob
) -> None:
    pool = Slow(lambda: None)
    ahead = Ahead(threads, pool)
    ahead.begin(job, prepared(StoppedError("the run was stopped")))
    with pytest.raises(StoppedError):
        ahead.take(0, lambda _: None)
    assert not pool.began.is_set()
