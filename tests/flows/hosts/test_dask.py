"""A run on a Dask cluster: a real scheduler and real workers, one of which dies."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from streaming_ext.base.errors import UsageError
from tests.command_line import (
    PATIENCE_SECONDS,
    assert_same_dataset,
    ended_as,
    is_alive,
    wait_for,
    workers_of,
)
from tests.flows.conftest import SHUFFLE
from tests.servers.prefect.server import free_port
from tests.warm import start_module

distributed = pytest.importorskip("distributed")

from flows.executors.dask import on_dask  # noqa: E402


class DaskCluster:
    """A scheduler and two workers of one thread each, with their own temporary folder."""

    def __init__(self, env: dict[str, str], folder: Path, stack: ExitStack) -> None:
        """Start the cluster; `folder` holds its log and temporary files, and `stack` ends it."""
        self._env, self._folder, self._stack = env, folder, stack
        self.address = f"127.0.0.1:{free_port()}"
        host, port = self.address.split(":")
        self._start("dask_scheduler", "--host", host, "--port", port, "--no-dashboard")
        self.workers = [
            self._start(
                *("dask_worker", f"tcp://{self.address}", "--nthreads", "1", "--no-dashboard"),
                *("--no-nanny", "--host", host, "--local-directory", str(folder / name)),
            )
            for name in ("one", "two")
        ]

    def _start(self, program: str, *arguments: str) -> "subprocess.Popen[str]":
        env = {**self._env, "TMPDIR": str(self._folder)}
        with (self._folder / "dask.log").open("ab") as log:
            process = start_module(f"distributed.cli.{program}", arguments, env, log=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def frozen(self, run: "subprocess.Popen[str]") -> "subprocess.Popen[str]":
        """Wait until a worker has processes of a run, stop these, and return the worker."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            for worker in self.workers:
                if ours := workers_of(worker.pid):
                    for process in ours:
                        process.suspend()
                    return worker
            assert run.poll() is None, run.communicate()
            time.sleep(0.05)
        raise AssertionError((self._folder / "dask.log").read_text()[-3000:])


@pytest.fixture
def dask(served, tmp_path) -> Iterator[DaskCluster]:
    with ExitStack() as stack:
        yield DaskCluster(dict(served.env), tmp_path, stack)


def test_ctrl_c_then_a_worker_dies(dask, served, dataset, tmp_path) -> None:
    output = tmp_path / "out"
    served = served.where(SHARDMILL_SILENCE="8")  # seconds, in place of 20
    arguments = served.shard_arguments(output, executor=f"dask://{dask.address}")
    run = served.start(*arguments)
    dask.frozen(run)
    run.send_signal(2)
    ended_as(run, 130)
    wait_for(lambda: not any(workers_of(worker.pid) for worker in dask.workers))
    assert not (output / "manifest.json").exists()

    run = served.start(*arguments)
    dying = dask.frozen(run)
    left = psutil.Process(dying.pid).children(recursive=True)
    dying.kill()
    ended_as(run)
    assert_same_dataset(dataset, output)
    for process in left:
        process.resume()
    wait_for(lambda: not [process for process in left if is_alive(process)])


@pytest.mark.soak
def test_shuffled(dask, served, shuffled, tmp_path) -> None:
    """The workers join each of the two phases; one dies in between, and the run goes on."""
    output = tmp_path / "out"
    run = served.start(
        *served.shard_arguments(output, executor=f"dask://{dask.address}", **SHUFFLE)
    )
    wait_for(lambda: list(output.glob("shuffle/*.json")), run)
    dask.workers[0].kill()
    ended_as(run)
    assert_same_dataset(shuffled, output)


def test_nobody_answers(monkeypatch) -> None:
    monkeypatch.setattr("flows.executors.dask.START_SECONDS", 0.5)
    with (
        pytest.raises(UsageError, match="No Dask cluster with a worker answers"),
        on_dask(f"tcp://127.0.0.1:{free_port()}"),
    ):
        pytest.fail("there is none")
