"""Several processes that do the same work, like the ranks of a job."""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def in_processes(count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return the results of `work(rank, *arguments)` in `count` forked processes."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def run(rank: int) -> None:
        import torch

        torch.set_num_threads(1)
        for name in ("RANK", "WORLD_SIZE"):
            os.environ.pop(name, None)
        try:
            results.put((rank, work(rank, *arguments), None))
        except BaseException:  # noqa: BLE001 - reported to the test
            results.put((rank, None, traceback.format_exc()))

    processes = [context.Process(target=run, args=(rank,)) for rank in range(count)]
    for process in processes:
        process.start()
    try:
        found = {}
        for _ in processes:
            rank, result, failure = results.get(timeout=240)
            assert failure is None, failure
            found[rank] = result
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [found[rank] for rank in range(count)]


def join_group(store: Path, rank: int, size: int) -> None:
    """Create torch's default process group for this process and its siblings."""
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size
    )
