"""Functions of a block, in this process, in threads or in other processes.

Workers work ahead of the consumer, and their results come in the order of the samples.
"""

import logging
import math
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from torch.utils.data import get_worker_info

from streaming_ext.base.arrays import ceil_div
from streaming_ext.base.errors import UsageError, WorkerDiedError
from streaming_ext.training.workers import Forks, end_with_parent
from streaming_ext.transforms.block import Block, Sample, State, copied
from streaming_ext.transforms.flow import Flow, Input, Open, Subset, require_others

ExecutorType: TypeAlias = Literal["thread", "process"]
Function: TypeAlias = Callable[[Sample], Any]
OfBlock: TypeAlias = Callable[[Block], Block]
MANY: Final = 100_000  # samples left out in a row before a warning
_IN_FLIGHT: Final = 2  # tasks a worker, the current one included
_FARTHEST: Final = 64  # tasks a worker while the first one is slow, unless ordered
_LEAST: Final = 64  # samples of a task of whole blocks
_log = logging.getLogger(__name__)
_function: Any = None  # of a worker process


def of_samples(block: Block, *, made_by: Function, kind: str) -> Block:
    """Apply a function to each sample: `map`, `filter` or `filter_map`.

    A function may change the sample that it receives; that of a filter receives a copy.
    """
    if kind == "filter":
        return Block([sample for sample in block.samples if made_by(copied(sample))])
    made = [made_by(sample) for sample in block.samples]
    kept = [sample for sample in made if sample is not None]
    if kind == "map" and len(kept) < len(made):
        raise UsageError(
            "The function of map() returned None, expected a sample. Return the sample that it "
            "received, or use filter_map() to leave samples out."
        )
    return Block(kept)


class _Consumer(Executor):
    """The consumer itself, which does a task when it submits it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args))
        return future


class Crew(NamedTuple):
    """The workers of a step.

    Attributes:
        executor_type: threads or processes.
        workers: how many; 0 for the consumer itself.
        samples: of a task; None for whole blocks.
        ordered: whether a slow task holds up the others soon.
    """

    executor_type: ExecutorType = "thread"
    workers: int = 0
    samples: int | None = None
    ordered: bool = True

    @classmethod
    def of(
        cls,
        max_workers: int | None = None,
        prefetch_factor: int = 10,
        ordered: bool = True,
        executor_type: ExecutorType = "process",
    ) -> "Crew":
        """The workers that a user asks for.

        Raises:
            UsageError: an argument is wrong.
        """
        workers = max_workers if max_workers is not None else os.cpu_count() or 1
        if executor_type not in {"thread", "process"} or workers < 1 or prefetch_factor < 1:
            raise UsageError(
                "executor_type must be 'thread' or 'process', max_workers and prefetch_factor 1 or "
                f"more, got {executor_type!r}, {max_workers} and {prefetch_factor}."
            )
        samples = ceil_div(prefetch_factor, _IN_FLIGHT)
        return cls(executor_type=executor_type, workers=workers, samples=samples, ordered=ordered)

    def start(self, function: OfBlock) -> tuple[Executor, OfBlock]:
        """Start the workers; what to submit to them comes second."""
        if self.workers == 0:
            return _Consumer(), function
        if self.executor_type == "thread":
            pool: Executor = ThreadPoolExecutor(self.workers)
            # Prepare while the first samples are read. What fails fails again with them.
            for _ in range(self.workers):
                pool.submit(function, Block([]))
            return pool, function
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "executor_type='process' cannot be used in a worker of a DataLoader, which may "
                "have no processes of its own. Use executor_type='thread', or num_workers=0."
            )
        # A fork inherits the function, which may be one that cannot be pickled.
        # Exit hooks may wait for locks that threads held when it was copied.
        pool = ProcessPoolExecutor(self.workers, Forks(), initializer=_start, initargs=(function,))
        # Starts the processes before this one has threads, whose locks they would copy.
        pool.submit(_of_process, Block([]))
        return pool, _of_process


CONSUMER: Final = Crew()


def _start(function: OfBlock) -> None:
    global _function  # noqa: PLW0603 - this process exists for it alone
    _function = function
    # Ctrl+C reaches all processes of a terminal; the training process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _of_process(block: Block) -> Block:
    made: Block = _function(block)
    return made


class _Task(NamedTuple):
    """Some samples that a worker works on; the state is the one before them."""

    state: State
    passes: int
    future: Future[Block]


def applied(
    subset: Subset, state: State, *, source: Open, function: OfBlock, crew: Crew, name: str
) -> Flow:
    """What a function makes of each block.

    Args:
        subset: of the samples.
        state: of this flow.
        source: of the samples.
        function: of a block.
        crew: the workers.
        name: of the step, for messages.

    Raises:
        UsageError: it leaves out every sample of a source that repeats forever.
        WorkerDiedError: a worker process died.
    """
    if get_worker_info() is not None and (crew.executor_type, crew.workers) == ("thread", 1):
        crew = CONSUMER  # a worker of a loader is for one core
    pool, work = crew.start(function)
    tasks: deque[_Task] = deque()
    few, many = max(crew.workers * _IN_FLIGHT, 1), 0 if crew.ordered else crew.workers * _FARTHEST
    last = False
    passes: int | None = None  # of the source, when a sample was made last
    warn_at: float = 0  # samples of the source
    try:
        with Input(source, subset, state) as given:
            while True:
                while not last and (
                    len(tasks) < few or (len(tasks) < many and not tasks[0].future.done())
                ):
                    before = given.state()
                    last = not given.has(crew.samples or (_LEAST if crew.workers else 1))
                    if block := given.use(crew.samples):
                        tasks.append(_Task(before, given.passes, pool.submit(work, block)))
                if not tasks:
                    return
                task = tasks.popleft()
                made = task.future.result()
                if len(made) or passes is None:
                    passes, warn_at = task.passes, given.used + MANY
                elif given.used >= warn_at:
                    warn_at = math.inf
                    _log.warning(
                        f"{name} left out the last {MANY:,} samples. If the source has no end, "
                        "none may ever come: look at what is kept."
                    )
                # Each pass deals other samples to this worker, until it has seen all. One more
                # pass: sources that are interleaved do not end their passes together.
                if task.passes - passes > subset[1] + 1:
                    problem = (
                        f"{name} left out every sample of a whole pass, and the source repeats "
                        "them forever. Look at what is kept, or leave out repeat."
                    )
                    return require_others(source, subset, problem, function)
                yield made.at(tasks[0].state if tasks else given.state(), task.passes)
    except BrokenExecutor as error:
        raise WorkerDiedError(
            "A worker process died, perhaps killed for memory. Use fewer (max_workers=), and "
            "resume from the last state."
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
