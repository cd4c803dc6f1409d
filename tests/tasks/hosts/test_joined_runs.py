"""A process of a Dask cluster at work for runs: several at once, one after another, and the end."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from uuid import uuid4

import cloudpickle
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from streaming_ext.dataset.schema import to_json
from streaming_ext.errors import StoppedError
from streaming_ext.text.listing import list_sources
from tasks.core.cluster.heartbeat import Heartbeat
from tasks.core.cluster.messages import ParentSign, parent_path
from tasks.core.cluster.shared_plan import put_shared_plan
from tasks.core.config import ShardConfig
from tasks.core.planning.look import look, take_up
from tasks.core.storage import LocalStorage
from tasks.hosts.guest import CannotTakePartError
from tasks.hosts.joined_runs import JoinedRuns
from tasks.running.run import Run
from tasks.shard_part import shard_part
from tests.command_line import wait_for
from tests.servers.prefect.server import free_port


@pytest.fixture(autouse=True)
def no_server() -> Iterator[None]:
    """Prefect does not answer; what a run must know passes over the storage."""
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}):
        yield


@contextmanager
def parent_run(folder: Path, vocabulary: Path, sources: Path) -> Iterator[tuple[str, str]]:
    """A run that planned and lives for the length of the block; yields its output and its id."""
    storage, run = LocalStorage(folder), str(uuid4())
    config = ShardConfig(
        sources=(str(sources),), output=str(folder), tokenizer=str(vocabulary), pattern="gpt2",
        engine="reference",
    )  # fmt: skip
    storage.create()
    sources = tuple(list_sources(config.sources))
    plan = take_up(look(config, storage, sources), storage, sources)
    put_shared_plan(plan, storage, run, 1)
    stopped = threading.Event()

    def sign(beat: int) -> bytes:
        return to_json(ParentSign(beat=beat, attempts=(1,), stopped=stopped.is_set()))

    with Heartbeat(storage, parent_path(run), sign) as heartbeat:
        yield str(folder), run
        stopped.set()
        heartbeat.beat()


def test_two_runs_at_once(tmp_path: Path, vocabulary: Path, sources: Path) -> None:
    """Each keeps what it has until it is over, whatever the other does."""
    joined = JoinedRuns()
    with parent_run(tmp_path / "first", vocabulary, sources) as first:
        means = joined.means(*first, 1)
        with parent_run(tmp_path / "second", vocabulary, sources) as second:
            other = joined.means(*second, 1)
            assert joined.means(*first, 1) is means
            assert joined.is_at_work(first[1])
            assert joined.is_at_work(second[1])
        wait_for(lambda: not joined.is_at_work(second[1]))
        with pytest.raises(StoppedError):
            other.require_going()
        means.require_going()
    wait_for(lambda: not joined.is_at_work(first[1]))
    with pytest.raises(StoppedError, match="stopped"):  # a file that comes late
        joined.means(*first, 1)
    assert not joined.is_at_work(first[1])


def test_who_cannot_join_tells_all_that_wait(tmp_path: Path) -> None:
    joined, run = JoinedRuns(), str(uuid4())

    def ask() -> Run:
        return joined.means(str(tmp_path), run, 1)

    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(copy_context().run, ask) for _ in range(3)]
    for one in asked:
        assert "there is no such plan" in str(one.exception())
        assert isinstance(one.exception(), CannotTakePartError)
    assert not joined.is_at_work(run)


def test_the_task_can_be_sent_to_another_process() -> None:
    assert cloudpickle.loads(cloudpickle.dumps(shard_part)).name == "shard"
