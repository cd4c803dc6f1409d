"""Processes that work on a step, and ranks that train: how they begin, end and are killed."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest

from streaming_ext.transforms import CheckpointableDataset
from streaming_ext.transforms.block import Block, State
from streaming_ext.transforms.flow import Flow, Subset
from tests.command_line import is_alive, wait_for
from tests.streaming_ext.from_text.test_text_torchrun import run
from tests.streaming_ext.transforms.chains import batches_of

SAMPLES = [{"id": number} for number in range(20)]


TRAIN = """
import json, pathlib, sys

import torch.distributed as dist

from streaming_ext.transforms import CheckpointableLoader
from tests.streaming_ext.transforms.chains import batches_of

folder, vocabulary, told = sys.argv[1:]
dist.init_process_group("gloo")
rank, ranks, told = dist.get_rank(), dist.get_world_size(), pathlib.Path(told)
loader = CheckpointableLoader(batches_of(folder, vocabulary), num_workers=1, samples_in_message=2)
if told.exists():
    loader.load_state_dict(json.loads(told.read_text()))
for batch in loader:
    rows = [None] * ranks
    dist.all_gather_object(rows, batch["input_ids"][rank::ranks].tolist())
    if rank == 0:
        told.with_suffix(".new").write_text(json.dumps(loader.state_dict()))
        told.with_suffix(".new").replace(told)
        print(json.dumps([batch["step"][0].item(), sorted(sum(rows, []))]), flush=True)
    dist.barrier()
dist.destroy_process_group()
"""


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

    def opened(subset: Subset, state: State) -> Flow:
        begun.update(children())
        yield Block(SAMPLES, state=0)

    before = children()
    dataset = CheckpointableDataset(opened, "own").parallel_map(with_pid, max_workers=2)
    found = {sample["pid"] for sample in dataset}
    assert found
    assert found <= begun - before


def test_a_pass_that_is_not_begun_leaves_no_worker() -> None:
    def refuses(subset: Subset, state: State) -> Flow:
        raise ValueError("refused")
        yield

    before = children()
    with pytest.raises(ValueError, match="refused"):
        next(CheckpointableDataset(refuses, "own").parallel_map(with_pid, max_workers=1).iter())
    wait_for(lambda: children() <= before)


def interrupted(sample: dict[str, Any]) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGINT)
    return sample


def test_ctrl_c_is_left_to_the_process_that_trains() -> None:
    """Which may end its step first, and save a state; no worker prints a traceback."""
    dataset = CheckpointableDataset.from_sequence(SAMPLES).parallel_map(interrupted, max_workers=1)
    assert [sample["id"] for sample in dataset] == [sample["id"] for sample in SAMPLES]


@pytest.mark.soak
def test_killed_on_two_ranks_and_resumed_on_one(
    folder: Path, vocabulary: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    whole = {one["step"][0].item(): sorted(one["input_ids"].tolist())
             for one in batches_of(str(folder), str(vocabulary))}  # fmt: skip
    assert len(whole) > 25
    arguments: list[str | Path] = [script, folder, vocabulary, tmp_path / "state.json"]
    before = run(arguments, 2, kill_after=36)
    after = run(arguments, 1, kill_after=None)
    assert 36 <= max(before) < max(whole)
    assert min(after) in (max(before), max(before) + 4)  # the state may be one batch ahead of us
    assert before == {step: rows for step, rows in whole.items() if step <= max(before)}
    assert after == {step: rows for step, rows in whole.items() if step >= min(after)}
