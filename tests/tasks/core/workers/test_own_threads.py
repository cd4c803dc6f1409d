"""Small jobs in threads: what processes make, errors by their type, and a stop at any moment."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.making.making import workers_for
from streaming_ext.errors import CorruptDatasetError, StoppedError
from tasks.core.config import ShardConfig
from tasks.core.imports.config import ImportConfig
from tasks.core.moving.config import CopyConfig, MergeConfig
from tasks.core.moving.plan import MovePlan, plan_copy, plan_merge, prepare
from tasks.core.storage import open_storage
from tasks.core.workers.messages import JobProgress
from tasks.core.workers.own_threads import OwnThreads
from tasks.core.workers.pool import InternalError, WorkerPool
from tasks.running.worker_pools import worker_pools
from tests.tasks.core.build_dataset import build_dataset


@pytest.fixture
def original(tmp_path: Path, rank_path: Path) -> Path:
    texts = [[f"Document {number} of {part}." * 9 for number in range(20)] for part in range(2)]
    return build_dataset(tmp_path / "original", texts, tokenizer=str(rank_path))


@pytest.fixture
def plan(original: Path, tmp_path: Path) -> MovePlan:
    output = open_storage(str(tmp_path / "copy"))
    output.create()
    plan = plan_copy(CopyConfig(dataset=str(original), output=str(output)), output)
    prepare(plan, output)
    return plan


@pytest.fixture
def threads() -> Iterator[OwnThreads]:
    with OwnThreads(2) as made:
        yield made


def test_a_job_is_done(plan: MovePlan, threads: OwnThreads, tmp_path: Path) -> None:
    output, told = open_storage(plan.config.output), list[JobProgress]()
    made = [threads.run(plan.job(number, output), on_progress=told.append) for number in (0, 1)]
    assert all(part.size for part in made)
    assert told[-1].fraction == 1
    assert set(output.list("parts")) == {"parts/00000.json", "parts/00001.json"}


def test_errors_are_those_of_a_process(plan: MovePlan, threads: OwnThreads, original: Path) -> None:
    output = open_storage(plan.config.output)
    shard = next((original / "train/00000").iterdir())
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(CorruptDatasetError, match=f"train/00000/{shard.name}: its content hash"):
        threads.run(plan.job(0, output))

    def fail(progress: JobProgress) -> None:
        raise LookupError("nobody expected this")

    with pytest.raises(InternalError, match="nobody expected this"):
        threads.run(plan.job(1, output), on_progress=fail)


def test_a_stop_waits_for_nothing(plan: MovePlan, threads: OwnThreads) -> None:
    """Not even for a job that hangs, as in storage that does not answer."""
    output, ended = open_storage(plan.config.output), list[BaseException]()
    begun, going_on = threading.Event(), threading.Event()

    def hang(progress: JobProgress) -> None:
        begun.set()
        assert going_on.wait(600)

    def work() -> None:
        try:
            threads.run(plan.job(0, output), on_progress=hang)
        except StoppedError as error:
            ended.append(error)

    caller = threading.Thread(target=work)
    caller.start()
    assert begun.wait(60)
    threads.stop()
    caller.join(60)
    assert not caller.is_alive()
    assert len(ended) == 1
    going_on.set()
    with pytest.raises(StoppedError):
        threads.run(plan.job(1, output))


def test_little_work_takes_no_process(
    plan: MovePlan, original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a merge on one disk it is little however much the datasets hold."""
    merge = MergeConfig(datasets=(str(original),) * 2, output=str(tmp_path / "both"), repeats=True)
    merging = plan_merge(merge, open_storage(merge.output))
    for each in (plan, merging):
        with workers_for(each, 2, None) as workers:
            assert isinstance(workers, OwnThreads)
    monkeypatch.setattr("flows.making.making.LITTLE_MOVED_BYTES", 100)
    assert plan.bytes_in_hand > 100
    with workers_for(merging, 2, None) as workers:
        assert isinstance(workers, OwnThreads)
    with workers_for(plan, 2, None) as workers:
        assert isinstance(workers, WorkerPool)


@pytest.mark.parametrize(("source_bytes", "expected"), [(100, OwnThreads), (2**30, WorkerPool)])
def test_little_that_is_imported(
    tmp_path: Path, rank_path: Path, source_bytes: int, expected: type
) -> None:
    source, output = str(tmp_path / "ids.bin"), str(tmp_path / "out")
    config = ImportConfig(
        format="nanogpt", sources=(source,), output=output, tokenizer=str(rank_path)
    )
    with worker_pools(config.run, 2, source_bytes) as pools:
        assert {type(pool) for pool in pools} == {expected}


def test_what_tokenizes_is_never_little(tmp_path: Path, rank_path: Path) -> None:
    source, output = str(tmp_path / "a.parquet"), str(tmp_path / "out")
    config = ShardConfig(sources=(source,), output=output, tokenizer=str(rank_path))
    with worker_pools(config, 1, 100) as pools:
        assert {type(pool) for pool in pools} == {WorkerPool}
