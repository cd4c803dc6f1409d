"""Processes of a step, and ranks that train: how they start, end and are killed."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
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
from tests.streaming_ext.training.trainers.recipes import ROOT
from tests.streaming_ext.transforms.chains import batches_of

SAMPLES = [{"id": number} for number in range(20)]


TRAIN = """
import json, pathlib, sys

import torch.distributed as dist

from streaming_ext.transforms import CheckpointableLoader
from tests.streaming_ext.transforms.chains import batches_of

folder, vocabulary, state_file = sys.argv[1:]
dist.init_process_group("gloo")
rank, ranks, state_file = dist.get_rank(), dist.get_world_size(), pathlib.Path(state_file)
loader = CheckpointableLoader(batches_of(folder, vocabulary), num_workers=1, samples_in_message=2)
if state_file.exists():
    loader.load_state_dict(json.loads(state_file.read_text()))
for batch in loader:
    rows = [None] * ranks
    dist.all_gather_object(rows, batch["input_ids"][rank::ranks].tolist())
    if rank == 0:
        state_file.with_suffix(".new").write_text(json.dumps(loader.state_dict()))
        state_file.with_suffix(".new").replace(state_file)
        print(json.dumps([batch["step"][0].item(), sorted(sum(rows, []))]), flush=True)
    dist.barrier()
dist.destroy_process_group()
"""


def with_pid(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "pid": os.getpid()}


def trainer(sender: Connection, *, ends: bool) -> None:
    """Begin a pass with a worker, or finish it, in a process whose exit hook never returns."""
    lock = threading.Lock()
    lock.acquire()
    threading._register_atexit(lock.acquire)  # type: ignore[attr-defined]  # as pools and Prefect
    dataset = CheckpointableDataset.from_sequence(SAMPLES).parallel_map(with_pid, max_workers=1)
    samples = iter(dataset)
    sender.send(next(samples)["pid"])
    for _ in samples if ends else ():
        pass
    time.sleep(3600)


def children() -> set[int | None]:
    return {process.pid for process in multiprocessing.active_children()}


@pytest.mark.parametrize("ends", [False, True])
def test_workers_end_with_their_pass_and_with_a_process_that_is_killed(ends) -> None:
    """They do not run the exit hooks that they inherit."""
    receiver, sender = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    training = context.Process(target=trainer, args=(sender,), kwargs={"ends": ends})
    training.start()
    worker = receiver.recv()
    try:
        if not ends:
            assert psutil.Process(worker).ppid() == training.pid
            training.kill()
        wait_for(lambda: not (psutil.pid_exists(worker) and is_alive(psutil.Process(worker))))
    finally:
        training.kill()
        training.join()


def test_workers_begin_before_their_source_has_threads() -> None:
    """A fork copies the locks that other threads hold."""
    started = set()

    def opened(subset: Subset, state: State) -> Flow:
        started.update(children())
        yield Block(SAMPLES, state=0)

    before = children()
    dataset = CheckpointableDataset(opened, "own").parallel_map(with_pid, max_workers=2)
    found = {sample["pid"] for sample in dataset}
    assert found
    assert found <= started - before


def test_a_pass_that_does_not_begin_leaves_no_worker() -> None:
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
    """The training process may finish its step and save a state; no worker prints a traceback."""
    dataset = CheckpointableDataset.from_sequence(SAMPLES).parallel_map(interrupted, max_workers=1)
    assert [sample["id"] for sample in dataset] == [sample["id"] for sample in SAMPLES]


def run(arguments: list[str | Path], ranks: int, *, kill_after: int | None) -> dict[int, list[int]]:
    """Run training under torchrun; return the rows of each step that was printed."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        *map(str, arguments),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    steps = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            step, rows = json.loads(line)
            steps[step] = rows
            if step == kill_after:
                for one in [process, *psutil.Process(process.pid).children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess):  # a worker of one that died
                        one.kill()
        assert process.wait(240) == (0 if kill_after is None else -signal.SIGKILL)
    return steps


@pytest.mark.soak
def test_killed_on_two_ranks_and_resumed_on_one(folder, vocabulary, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    expected = {
        one["step"][0].item(): sorted(one["input_ids"].tolist())
        for one in batches_of(str(folder), str(vocabulary))
    }
    assert len(expected) > 25
    arguments = [script, folder, vocabulary, tmp_path / "state.json"]
    before = run(arguments, 2, kill_after=36)
    after = run(arguments, 1, kill_after=None)
    assert 36 <= max(before) < max(expected)
    # The state is saved before the output, and may be one batch of four ahead of it.
    assert min(after) in (max(before) + 4, max(before) + 8)
    assert before == {step: rows for step, rows in expected.items() if step <= max(before)}
    assert after == {step: rows for step, rows in expected.items() if step >= min(after)}
