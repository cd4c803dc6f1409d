"""Functions of blocks, applied in this process, in threads or in other processes.

Workers work ahead of the consumer, and their results come in the order of the samples.
"""

import logging
import math
import multiprocessing
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
from streaming_ext.base.threads import cores
from streaming_ext.training.workers import Forks, end_with_parent
from streaming_ext.transforms.block import Block, Sample, State, copied
from streaming_ext.transforms.flow import Flow, Input, Open, Subset, require_others

ExecutorType: TypeAlias = Literal["thread", "process"]
Function: TypeAlias = Callable[[Sample], Any]
OfBlock: TypeAlias = Callable[[Block], Block]
MANY: Final = 100_000  # samples left out in a row before a warning
_IN_FLIGHT: Final = 2  # tasks per worker, the current one included
_FARTHEST: Final = 64  # tasks per worker while the first one is slow, unless ordered
_LEAST: Final = 64  # samples per task of whole blocks, at least
_log = logging.getLogger(__name__)
_function: Any = None  # the function of a worker process


def of_samples(block: Block, *, function: Function, kind: str) -> Block:
    """Apply a function to each sample: `map`, `filter` or `filter_map`.

    A function may change the sample that it receives; the function of a filter receives a copy.
    """
    if kind == "filter":
        return Block([sample for sample in block.samples if function(copied(sample))])
    made = [function(sample) for sample in block.samples]
    kept = [sample for sample in made if sample is not None]
    if kind == "map" and len(kept) < len(made):
        raise UsageError(
            "The function of map() returned None, expected a sample. Return the sample that it "
            "received, or use filter_map() to leave samples out."
        )
    return Block(kept)


class _Consumer(Executor):
    """The consumer itself, which does a task when the task is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args))
        return future


class StepWorkers(NamedTuple):
    """The workers of a step.

    Attributes:
        executor_type: threads or processes.
        number: the number of workers; 0 for the consumer itself.
        samples: the number of samples per task; None for whole blocks.
        ordered: true if a slow task soon holds up the others.
    """

    executor_type: ExecutorType = "thread"
    number: int = 0
    samples: int | None = None
    ordered: bool = True

    @classmethod
    def of(
        cls,
        max_workers: int | None = None,
        prefetch_factor: int = 10,
        ordered: bool = True,
        executor_type: ExecutorType = "process",
    ) -> "StepWorkers":
        """Check the workers that a user requests.

        Raises:
            UsageError: an argument is wrong.
        """
        number = max_workers if max_workers is not None else cores()
        if executor_type not in {"thread", "process"} or number < 1 or prefetch_factor < 1:
            raise UsageError(
                "executor_type must be 'thread' or 'process', max_workers and prefetch_factor 1 or "
                f"more, got {executor_type!r}, {max_workers} and {prefetch_factor}."
            )
        samples = ceil_div(prefetch_factor, _IN_FLIGHT)
        return cls(executor_type, number, samples, ordered)

    def start(self, function: OfBlock) -> tuple[Executor, OfBlock]:
        """Start the workers; return them, and the function to submit to them."""
        if self.number == 0:
            return _Consumer(), function
        if self.executor_type == "thread":
            pool: Executor = ThreadPoolExecutor(self.number)
            # Prepare while the first samples are read. A failure here comes again with them.
            for _ in range(self.number):
                pool.submit(function, Block([]))
            return pool, function
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "executor_type='process' cannot be used in a worker of a DataLoader, which may "
                "have no processes of its own. Use executor_type='thread', or num_workers=0."
            )
        # A fork inherits the function, which may be one that cannot be pickled. Exit hooks of the
        # fork could wait for locks that threads held when the process was copied.
        pool = ProcessPoolExecutor(self.number, Forks(), initializer=_start, initargs=(function,))
        # This starts the processes before this one has threads, whose locks they would copy.
        pool.submit(_of_process, Block([]))
        return pool, _of_process


CONSUMER: Final = StepWorkers()


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
    """The samples that a worker works on, with the state before them."""

    state: State
    passes: int
    future: Future[Block]


def of_blocks(
    subset: Subset,
    state: State,
    *,
    source: Open,
    function: OfBlock,
    workers: StepWorkers,
    name: str,
) -> Flow:
    """Apply a function to each block.

    Args:
        subset: the subset of the samples.
        state: the state of this flow.
        source: a function that opens the flow of the samples.
        function: the function of a block.
        workers: the workers that apply it.
        name: the name of the step in messages.

    Raises:
        UsageError: the function leaves out every sample of a source that repeats forever.
        WorkerDiedError: a worker process died.
    """
    if get_worker_info() is not None and workers[:2] == ("thread", 1):
        workers = CONSUMER  # a worker of a loader has one core
    pool, work = workers.start(function)
    tasks: deque[_Task] = deque()
    few = max(workers.number * _IN_FLIGHT, 1)
    many = 0 if workers.ordered else workers.number * _FARTHEST
    last = False
    passes: int | None = None  # of the source, when the last sample was made
    warn_at: float = 0  # in samples of the source
    try:
        with Input(source, subset, state) as given:
            while True:
                while not last and (
                    len(tasks) < few or (len(tasks) < many and not tasks[0].future.done())
                ):
                    before = given.state()
                    last = not given.has(workers.samples or (_LEAST if workers.number else 1))
                    if block := given.use(workers.samples):
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
                # Each pass gives other samples to this worker, until it has seen all. One more pass
                # is allowed, since interleaved sources do not end their passes together.
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
