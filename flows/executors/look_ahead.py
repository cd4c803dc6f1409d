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

from flows.executors.stage import Stage
from flows.prefect_api.suspension import end_if_suspended
from streaming_ext.text.parts.part import Part
from tasks.running.run import InHand

_LOOK_SECONDS = 1.0
MAX_THREADS = 4096  # of a task runner; it starts them as they are needed


@dataclass(frozen=True, slots=True)
class PartEnd:
    """How a part ended: the state of the last step, or of the one that failed."""

    part: Part
    step: str
    state: State


def done_in_any_order(
    stage: Stage, run: InHand, parts: Iterable[Part], *, at_once: int
) -> Iterator[PartEnd]:
    """Take each part through all steps of a stage; yield parts as they end, well or not.

    Args:
        stage: names the steps.
        run: what the tasks share.
        parts: in the order to begin them.
        at_once: parts between the first and the last step at any moment.
    """
    waiting = iter(parts)
    ended: queue.SimpleQueue[tuple[Part, int, PrefectFuture[Any]]] = queue.SimpleQueue()
    in_hand = 0
    first_local = next(index for index, step in enumerate(stage.steps) if step.local)

    def submit(part: Part, index: int, *before: PrefectFuture[Any]) -> None:
        step = stage.steps[index]
        run.progress.step(part.number, part.source, step.name, platform.node())
        # Prefect would look for futures in each of a part's pieces, perhaps thousands.
        future = step.submit(run, opaque(part), *before)
        future.add_done_callback(lambda _: ended.put((part, index, future)))

    def begin_next() -> int:
        for part in waiting:
            submit(part, 0 if part.remote else first_local)
            return 1
        return 0

    for _ in range(at_once):
        in_hand += begin_next()
    while in_hand:
        end_if_suspended()
        try:
            part, index, future = ended.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        future.wait()  # before that, its state may still read as pending
        if future.state.is_completed() and index + 1 < len(stage.steps):
            submit(part, index + 1, future)
            continue
        in_hand += begin_next() - 1
        yield PartEnd(part, stage.steps[index].name, future.state)
