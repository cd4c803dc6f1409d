"""Functions of samples in threads or processes, in order or as they are done.

Where the order is free, a state says which units came out already, and in which order those came
that a step behind this one may have to read again.
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
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from torch.utils.data import get_worker_info

from streaming_ext.errors import UsageError, WorkerDiedError
from streaming_ext.loading.parent import end_with_parent
from streaming_ext.transforms.block import Block, Sample
from streaming_ext.transforms.flow import Flow, Opening, Passes, Source, State, Taken, inner
from streaming_ext.transforms.steps.dropping import Dropping
from streaming_ext.transforms.steps.functions import OfSample

ExecutorType = Literal["thread", "process"]
_AHEAD = 2  # units a worker, one in its hands
_FARTHEST = 64  # units a worker that may come out before one that was begun earlier
_DIED = (
    "A worker process ended in the middle of its work, perhaps killed for memory. Take fewer "
    "(max_workers=), and go on from the last state."
)

_function: Callable[[Sequence[Sample]], list[Sample]] | None = None  # of a worker process


@runtime_checkable
class Prepared(Protocol):
    """A function for which a thread makes something before its first block."""

    def prepare(self) -> None:
        """Make it."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Crew:
    """How many workers there are, and what they do.

    Attributes:
        executor_type: what they are.
        workers: how many.
        unit: samples that one gets at once.
        ordered: whether samples come in their order.
        cut: whether a block is cut into units at all.
    """

    executor_type: ExecutorType
    workers: int
    unit: int
    ordered: bool = True
    cut: bool = True

    @classmethod
    def of(
        cls, executor_type: ExecutorType, max_workers: int | None, prefetch_factor: int,
        *, ordered: bool,
    ) -> "Crew":  # fmt: skip
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
        return cls(executor_type=executor_type, workers=workers, ordered=ordered,
                   unit=-(-prefetch_factor // _AHEAD))  # fmt: skip

    def start(self, function: Callable[[Block], Block]) -> "Workers":
        """Start the workers."""
        if self.executor_type == "thread":
            if self.workers == 1 and self.ordered and get_worker_info() is not None:
                return Workers(_Here(), function)  # a worker of a DataLoader is for one core
            pool: Executor = ThreadPoolExecutor(self.workers)
            if isinstance(function, Prepared):
                # While the first samples are fetched. What fails fails again with the first block.
                for _ in range(self.workers):
                    pool.submit(function.prepare)
            return Workers(pool, function)
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "executor_type='process' cannot be used in a worker of a DataLoader, which may "
                "have no processes of its own. Use executor_type='thread', or num_workers=0."
            )
        if not isinstance(function, OfSample):
            raise UsageError("executor_type='process' takes functions of one sample only.")
        # A fork inherits the function, which may be one that cannot be pickled.
        context = multiprocessing.get_context("fork" if hasattr(os, "fork") else None)
        pool = ProcessPoolExecutor(self.workers, context, _begin, (function.of,))
        pool.submit(_far, ())  # starts them, before this process has threads whose locks they copy
        return Workers(pool, _far)


class _Later(Future[Any]):
    """Work that is done when its result is asked for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> Any:
        """Do it."""
        return self._work()


class _Here(Executor):
    """No worker at all: who wants a result makes it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> "Future[Any]":
        """See `Executor`."""
        return _Later(partial(fn, *args, **named))


@dataclass(frozen=True, slots=True)
class Workers:
    """Some that work on blocks."""

    executor: Executor
    function: Callable[[Any], Any]

    def submit(self, block: Block) -> "Future[Any]":
        """Give a block to one of them."""
        work: Any = list(block.samples) if self.function is _far else block
        try:
            return self.executor.submit(self.function, work)
        except BrokenExecutor as error:
            raise WorkerDiedError(_DIED) from error

    def close(self) -> None:
        """Let go of them."""
        self.executor.shutdown(wait=False, cancel_futures=True)


def _begin(function: Callable[[Sequence[Sample]], list[Sample]]) -> None:
    global _function  # noqa: PLW0603 - of this process alone, which exists for it
    _function = function
    # Ctrl+C reaches all processes of a terminal; what it means is for the one that trains to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _far(samples: Sequence[Sample]) -> list[Sample]:
    assert _function is not None  # noqa: S101 - for the type checker
    return _function(samples)


def _done(future: "Future[Any]") -> Block:
    try:
        made = future.result()
    except BrokenExecutor as error:
        raise WorkerDiedError(_DIED) from error
    return made if isinstance(made, Block) else Block(samples=made)


@dataclass(slots=True)
class _Unit:
    number: int
    before: State
    begun: Passes  # of the source, before it
    ended: Passes  # and behind it
    size: int
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


@dataclass(slots=True)
class _Waiting:
    units: deque[_Unit] = field(default_factory=deque)
    next: int = 0  # number of the next unit


class ParallelFlow(Flow):
    """Blocks that workers make, ahead of their use."""

    def __init__(
        self, source: Callable[[], Flow], function: Callable[[Block], Block], crew: Crew,
        state: State | None, *, dropping: Dropping | None = None,
    ) -> None:  # fmt: skip
        """Start the workers, and then open the source."""
        self._dropping, self._passes, self._ended = dropping, Passes(0, 0), False
        self._crew, self._workers = crew, crew.start(function)
        try:
            self._source = Taken(source(), 0 if state is None else int(state["skip"]))
        except BaseException:
            self._workers.close()
            raise
        self._waiting = _Waiting()
        self._read = False  # the source is at its end
        # Without an order: what came out behind the oldest that is waited for, by number.
        self._out: set[int] = set()
        self._replayed: deque[int] = deque()
        self._last = _Link()
        if state is not None and not crew.ordered:
            self._out = {int(number) for number in state["out"]}
            self._replayed = deque(int(number) for number in state["order"])

    def pull(self, most: int) -> Block | None:
        self._submit(most)
        units = self._waiting.units
        if not units or self._ended:
            self._workers.close()
            return None
        unit = units[0] if self._crew.ordered else self._next()
        made = _done(unit.future)
        units.remove(unit)
        if not self._crew.ordered:
            self._out.add(unit.number)
            self._last.next = _Link(unit.number)
            self._last = self._last.next
        least = min([one.begun.least for one in units] or [unit.ended.least])
        self._passes = Passes(least, max(self._passes.most, unit.ended.most))
        if self._dropping is not None:
            self._ended = self._dropping.is_all(unit.size, len(made), self._passes)
        return made

    def _submit(self, most: int) -> None:
        """Keep all workers busy."""
        waiting = self._waiting
        wanted = self._replayed[0] if self._replayed else -1  # must be there to come out next
        oldest = waiting.units[0].number if waiting.units else waiting.next
        while not self._read and (
            waiting.next <= wanted
            or (
                len(waiting.units) < self._crew.workers * _AHEAD
                and waiting.next - oldest < self._crew.workers * _FARTHEST
            )
        ):
            before, begun = self._source.state(), self._source.passes()
            # Without an order, units are known by their numbers: each has so many samples.
            unit = self._crew.unit
            if self._crew.cut:
                block = self._source.exactly(unit)
            else:
                block = self._source.some(max(most, unit))
            if block is None:
                self._read = True
                return
            number = waiting.next
            waiting.next += 1
            if number not in self._out:
                future = self._workers.submit(block)
                ended = self._source.passes()
                waiting.units.append(_Unit(number, before, begun, ended, len(block), future))

    def _next(self) -> _Unit:
        """The unit that comes out next."""
        units = self._waiting.units
        if self._replayed:
            wanted = self._replayed.popleft()
            found = [unit for unit in units if unit.number == wanted]
            if not found:
                raise UsageError("A state names samples that are not there: the data changed.")
            return found[0]
        done = wait([unit.future for unit in units], return_when=FIRST_COMPLETED).done
        return next(unit for unit in units if unit.future in done)

    def state(self) -> State:
        units = self._waiting.units
        at = units[0].before if units else self._source.state()
        if self._crew.ordered:
            return at
        first = units[0].number if units else self._waiting.next
        self._out = {number for number in self._out if number >= first}
        return {**at, "out": sorted(number - first for number in self._out),
                "order": _Since(self._last, first, self._replayed)}  # fmt: skip

    def close(self) -> None:
        self._workers.close()
        self._source.close()

    def passes(self) -> Passes:
        return self._passes


def open_parallel(
    source: Source, opening: Opening, state: State | None, *, function: OfSample, crew: Crew
) -> Flow:
    """`parallel_map`, `parallel_filter` and `parallel_filter_map`."""
    below = opening.asking(None)
    dropping = None
    if function.kind != "map":
        dropping = Dropping(f"parallel_{function.name}", source, below, function)
    opened = partial(source.open, below, inner(state))
    return ParallelFlow(opened, function, crew, state, dropping=dropping)
