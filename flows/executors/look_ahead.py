"""Fanning out a chain of tasks per part, a bounded number of parts at a time.

Thousands of task runs submitted at once swamp a thread pool and the server behind it. A step is
submitted when the one before it is done, so that no task run is left waiting for a failed one.
"""

import platform
import queue
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.utilities.annotations import opaque

from flows.prefect_api.suspension import end_if_suspended
from streaming_ext.text.parts.part import Part
from tasks.core.build.build import Step
from tasks.core.build.run import Run
from tasks.steps import task_of

_LOOK_SECONDS = 1.0
MAX_THREADS = 4096  # of a task runner; it starts them as they are needed


_Ended = tuple[Part, tuple[Step, ...], PrefectFuture[Any]]


@dataclass(frozen=True, slots=True)
class PartEnd:
    """How a part ended: the state of the last step, or of the one that failed."""

    part: Part
    step: str
    state: State


def done_in_any_order(run: Run, parts: Iterable[Part], *, at_once: int) -> Iterator[PartEnd]:
    """Take each part through all its steps; yield parts as they end, well or not.

    Args:
        run: what the tasks share.
        parts: in the order to begin them.
        at_once: parts between the first and the last step at any moment.
    """
    waiting = iter(parts)
    ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
    in_hand = 0

    def submit(part: Part, steps: tuple[Step, ...]) -> None:
        step = steps[0]
        run.progress.step(part.number, part.source, step.name, platform.node())
        # Prefect would look for futures in each of a part's pieces, perhaps thousands.
        future = task_of(step.name).submit(run, opaque(part), step)
        future.add_done_callback(lambda _: ended.put((part, steps, future)))

    def begin_next() -> int:
        for part in waiting:
            submit(part, run.steps_of(part))
            return 1
        return 0

    for _ in range(at_once):
        in_hand += begin_next()
    while in_hand:
        end_if_suspended()
        try:
            part, steps, future = ended.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        future.wait()  # before that, its state may still read as pending
        if future.state.is_completed() and len(steps) > 1:
            submit(part, steps[1:])
            continue
        in_hand += begin_next() - 1
        yield PartEnd(part, steps[0].name, future.state)
