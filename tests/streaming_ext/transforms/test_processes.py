"""Worker processes of a step: when they begin, and that they end with who made them."""

import multiprocessing
import os
import signal
import time
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest

from streaming_ext.transforms import CheckpointableDataset
from streaming_ext.transforms.examples import open_sequence
from streaming_ext.transforms.flow import Flow, Opening, State
from tests.command_line import is_alive, wait_for

SAMPLES = [{"id": number} for number in range(20)]


def with_pid(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "pid": os.getpid()}


def trainer(told: Connection) -> None:
    """Begin a pass with a worker, and stay in it."""
    dataset = CheckpointableDataset.from_sequence(SAMPLES).parallel_map(with_pid, max_workers=1)
    samples = iter(dataset)
    told.send(next(samples)["pid"])
    time.sleep(3600)


def children() -> set[int | None]:
    return {process.pid for process in multiprocessing.active_children()}


def test_workers_end_with_a_process_that_is_killed() -> None:
    here, there = multiprocessing.Pipe()
    training = multiprocessing.get_context("fork").Process(target=trainer, args=(there,))
    training.start()
    worker = psutil.Process(here.recv())
    assert worker.ppid() == training.pid
    training.kill()
    training.join()
    wait_for(lambda: not is_alive(worker))


def test_workers_begin_before_their_source_has_threads() -> None:
    """A fork copies the locks that other threads hold."""
    begun: set[int | None] = set()

    def opened(opening: Opening, state: State | None) -> Flow:
        begun.update(children())
        return partial(open_sequence, sequence=SAMPLES, repeat=False, seed=None)(opening, state)

    before = children()
    dataset = CheckpointableDataset(opened, "own").parallel_map(with_pid, max_workers=2)
    found = {sample["pid"] for sample in dataset}
    assert found
    assert found <= begun - before


def test_a_pass_that_is_not_begun_leaves_no_worker() -> None:
    def refuses(opening: Opening, state: State | None) -> Flow:
        raise ValueError("refused")

    before = children()
    with pytest.raises(ValueError, match="refused"):
        CheckpointableDataset(refuses, "own").parallel_map(with_pid, max_workers=1).iter()
    wait_for(lambda: children() <= before)


def interrupted(sample: dict[str, Any]) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGINT)
    return sample


def test_ctrl_c_is_left_to_the_process_that_trains() -> None:
    """Which may end its step first, and save a state; no worker prints a traceback."""
    dataset = CheckpointableDataset.from_sequence(SAMPLES).parallel_map(interrupted, max_workers=1)
    assert [sample["id"] for sample in dataset] == [sample["id"] for sample in SAMPLES]
