"""Python functions of one sample, in this process, in threads or in other processes.

Workers take units of samples, ahead of their use. Where the order is free, a place says which units
came out already, and in which order those came that a step behind may have to read again.
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from torch.utils.data import get_worker_info

from streaming_ext.base.errors import UsageError, WorkerDiedError
from streaming_ext.training.workers import end_with_parent
from streaming_ext.transforms.block import Block, Sample, State, copied
from streaming_ext.transforms.flow import Flow, Input, OfBlock, mapped, watched

ExecutorType: TypeAlias = Literal["thread", "process"]
Function: TypeAlias = Callable[[Sample], Any]
_AHEAD: Final = 2  # units a worker, one in its hands
_FARTHEST: Final = 64  # units a worker that may come out before one that was begun earlier

_function: OfBlock | None = None  # of a worker process


def name_of(function: Function) -> str:
    """What messages call a function."""
    return str(getattr(function, "__name__", type(function).__name__))


def of_samples(block: Block, *, made_by: Function, kind: str) -> Block:
    """What a function makes of each sample, or those that it leaves.

    A function may change the sample that it is handed. One that only says whether a sample stays
    has a copy.
    """
    if kind == "filter":
        return Block([sample for sample in block.samples if made_by(copied(sample))])
    made = [made_by(sample) for sample in block.samples]
    if kind == "filter_map":
        return Block([sample for sample in made if sample is not None])
    if any(sample is None for sample in made):
        raise UsageError(
            "The function of map() returned None, expected a sample. Return the sample that it was "
            "given, or use filter_map() to leave samples out."
        )
    return Block(made)


@dataclass(frozen=True, kw_only=True, slots=True)
class Crew:
    """How many workers there are, and what they do.

    Attributes:
        executor_type: what they are.
        workers: how many.
        unit: samples that one gets at once.
        ordered: whether samples come in their order.
        whole: whether a unit is whole blocks, of so many samples at least.
    """

    executor_type: ExecutorType
    workers: int
    unit: int
    ordered: bool = True
    whole: bool = False

    @classmethod
    def of(
        cls,
        max_workers: int | None = None,
        prefetch_factor: int = 10,
        ordered: bool = True,
        executor_type: ExecutorType = "process",
    ) -> "Crew":
        """Of what users say.

        Raises:
            UsageError: it is not allowed.
        """
        workers = max_workers if max_workers is not None else os.cpu_count() or 1
        if executor_type not in {"thread", "process"} or workers < 1 or prefetch_factor < 1:
            raise UsageError(
                "executor_type must be 'thread' or 'process', max_workers and prefetch_factor 1 or "
                f"more, got {executor_type!r}, {max_workers} and {prefetch_factor}."
            )
        return cls(
            executor_type=executor_type,
            workers=workers,
            ordered=ordered,
            unit=-(-prefetch_factor // _AHEAD),
        )

    @classmethod
    def of_blocks(cls, threads: int) -> "Crew":
        """Threads that take whole blocks; none where the process that asks does the work."""
        return cls(executor_type="thread", workers=threads, unit=64, whole=True)

    @property
    def alone(self) -> bool:
        """Whether the process that asks does the work: a worker of a loader is for one core."""
        own = self.executor_type == "thread" and self.workers == 1 and self.ordered
        return not self.workers or (own and get_worker_info() is not None)

    def start(self, function: OfBlock) -> Executor:
        """Start the workers."""
        if self.executor_type == "thread":
            pool: Executor = ThreadPoolExecutor(self.workers)
            # While the first samples are fetched. What fails fails again with the first block.
            if prepare := getattr(function, "prepare", None):
                for _ in range(self.workers):
                    pool.submit(prepare)
            return pool
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "executor_type='process' cannot be used in a worker of a DataLoader, which may "
                "have no processes of its own. Use executor_type='thread', or num_workers=0."
            )
        # A fork inherits the function, which may be one that cannot be pickled.
        context = multiprocessing.get_context("fork" if hasattr(os, "fork") else None)
        pool = ProcessPoolExecutor(self.workers, context, initializer=_begin, initargs=(function,))
        pool.submit(_far, ())  # starts them, before this process has threads whose locks they copy
        return pool


def _begin(function: OfBlock) -> None:
    global _function  # noqa: PLW0603 - of this process alone, which exists for it
    _function = function
    # Ctrl+C reaches all processes of a terminal; what it means is for the one that trains to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _far(samples: Sequence[Sample]) -> Sequence[Sample]:
    assert _function is not None  # noqa: S101 - for the type checker
    return _function(Block(samples)).samples


@dataclass(slots=True)
class _Unit:
    number: int
    place: State  # before it
    passes: int
    future: "Future[Any]"


@dataclass(slots=True)
class _Link:
    """A unit that came out, and the one that came out next: those nobody can ask for are freed."""

    number: int = -1
    next: "_Link | None" = None


@dataclass(frozen=True, slots=True)
class _Since:
    """The units that came out since some place, for a state; counted from `first`."""

    link: _Link
    first: int
    to_come: deque[int]

    def plain(self) -> list[int]:
        """Their numbers by now, and those that a resume has yet to bring in their old order."""
        found, link = [], self.link
        while link.next is not None:
            link = link.next
            found.append(link.number - self.first)
        return found + [number - self.first for number in self.to_come]


class _Units:
    """Units in the hands of workers, and without an order, which came out already.

    Attributes:
        out: those behind the oldest that is waited for, by number.
        replayed: what is to come in its old order, by number.
    """

    def __init__(self, state: State | None, *, ordered: bool) -> None:
        self.waiting: deque[_Unit] = deque()
        self.out: set[int] = set() if state is None else {*state.get("out", ())}
        self.replayed = deque[int]() if state is None else deque(state.get("order", ()))
        self._ordered, self._newest, self.number = ordered, _Link(), 0  # number of the next unit

    def wanted(self, workers: int) -> bool:
        """Whether one more is to be handed out; what comes next in an old order must be there."""
        if self.replayed and self.number <= self.replayed[0]:
            return True
        oldest = self.waiting[0].number if self.waiting else self.number
        return len(self.waiting) < workers * _AHEAD and self.number - oldest < workers * _FARTHEST

    def next(self) -> _Unit:
        """The unit that comes out next."""
        unit = self.waiting[0]
        if self.replayed:
            wanted = self.replayed.popleft()
            unit = next((one for one in self.waiting if one.number == wanted), unit)
            if unit.number != wanted:
                raise UsageError("A state names samples that are not there: the data changed.")
        elif not self._ordered:
            done = wait([one.future for one in self.waiting], return_when=FIRST_COMPLETED).done
            unit = next(one for one in self.waiting if one.future in done)
        self.waiting.remove(unit)
        if not self._ordered:
            self.out.add(unit.number)
            self._newest.next = self._newest = _Link(unit.number)
        return unit

    def place(self, behind: State) -> State:
        """Where the samples behind those that came out begin; `behind` all that were read."""
        here = self.waiting[0].place if self.waiting else behind
        if self._ordered:
            return here
        first = self.waiting[0].number if self.waiting else self.number
        self.out = {number for number in self.out if number >= first}
        out = sorted(number - first for number in self.out)
        return {**here, "out": out, "order": _Since(self._newest, first, self.replayed)}


def parallel(
    given: Input,
    state: State | None,
    *,
    function: OfBlock,
    crew: Crew,
    name: str | None = None,
) -> Flow:
    """What a function makes of blocks, by workers.

    Args:
        given: the samples.
        state: a place of this flow.
        function: of a block.
        crew: the workers.
        name: of a function that leaves samples out, for messages.
    """
    if crew.alone:
        begin = None if state is None else {**state, "at": 0}
        return mapped(given, begin, function=function, name=name)
    return watched(_ahead(given, state, function, crew), given, function, name)


def _ahead(given: Input, state: State | None, function: OfBlock, crew: Crew) -> Flow:
    units, last = _Units(state, ordered=crew.ordered), False
    far = crew.executor_type == "process"
    with given:
        pool = crew.start(function)
        try:
            yield Block((), units.place(given.place()))
            while True:
                while not last and units.wanted(crew.workers):
                    before = given.place()
                    while given.have < crew.unit and not last:
                        last = not given.more()
                    block = given.use(None if crew.whole else crew.unit)
                    if len(block) and units.number not in units.out:
                        work = (_far, block.samples) if far else (function, block)
                        future = pool.submit(*work)
                        units.waiting.append(_Unit(units.number, before, given.passes, future))
                    units.number += 1
                if not units.waiting:
                    return
                passes = min(unit.passes for unit in units.waiting)
                made = units.next().future.result()
                place = units.place(given.place())
                yield (Block(made) if far else made).at(place, passes)
        except BrokenExecutor as error:
            raise WorkerDiedError(
                "A worker process ended in the middle of its work, perhaps killed for memory. Take "
                "fewer (max_workers=), and go on from the last state."
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
