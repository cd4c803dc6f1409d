"""The executor `here`: worker processes of this host.

Each part is a chain of tasks. Thousands of task runs at once would swamp the thread pool and the
server. So only a bounded number of parts is in progress, and a step is submitted when the one
before it is done.
"""

import platform
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.utilities.annotations import opaque

from flows.prefect_api.cancellation import end_if_suspended
from streaming_ext.base.errors import ShardmillError, TransientStorageError
from streaming_ext.store import Storage
from streaming_ext.text.parts import Part
from tasks.core.engine.build import Build, Step
from tasks.core.engine.run import LOOK_AHEAD_FILES, Run
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.workers.pool import WorkerPool
from tasks.steps import task_of

_LOOK_SECONDS = 1.0
MAX_THREADS = 4096  # of a task runner, which starts them when it needs them

Results = Iterator[PartTimes | FailedFile]
# Makes all remaining parts of a build, and yields the result of each, in any order. Raises an error
# that would also occur in every other part.
Executor = Callable[[Build, Storage, RunProgress], Results]


@contextmanager
def here(pool: WorkerPool, movers: WorkerPool) -> Iterator[Executor]:
    """Make parts with the worker processes of two pools, which end with the block."""
    with pool, movers:

        def work(phase: Build, output: Storage, progress: RunProgress) -> Results:
            return finished_parts(Run(phase, output, pool, progress, movers))

        yield work


def finished_parts(run: Run) -> Results:
    """Make all remaining parts; yield the result of each, in the order in which they end.

    Raises:
        StoppedError: the workers were stopped.
        ShardmillError: an error would also occur in every other part, or the storage failed for
            all parts in hand.
    """
    logger, build, progress = get_run_logger(), run.build, run.progress
    parts = [build.parts[number] for number in build.todo]
    progress.begin(parts=len(parts), source_bytes=sum(part.size for part in parts))
    progress.enter(build.words.doing)
    # A part that is being uploaded leaves its worker free for the next one.
    uploading = build.config.workers if run.output.remote else 0
    at_once = build.config.workers + LOOK_AHEAD_FILES + uploading
    waiting, in_hand, outage = iter(parts), 0, 0
    ended: queue.SimpleQueue[tuple[Part, tuple[Step, ...], PrefectFuture[PartTimes | None]]] = (
        queue.SimpleQueue()
    )

    def submit(part: Part, steps: tuple[Step, ...]) -> None:
        progress.step(part.number, part.source, steps[0].name, platform.node())
        progress.tasks += 1
        # Without `opaque`, Prefect would look for futures in everything that these objects hold.
        future = task_of(steps[0].name).submit(
            opaque(run), opaque(part), steps[0], return_state=False
        )
        future.add_done_callback(lambda _: ended.put((part, steps, future)))

    def begin(count: int) -> int:
        following = list(islice(waiting, count))
        for part in following:
            submit(part, run.work_on(part).steps)
        return len(following)

    in_hand += begin(at_once)
    while in_hand:
        end_if_suspended()
        try:
            part, steps, future = ended.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        future.wait()  # before this, its state may still be pending
        error = _error(future.state)
        if error is None and len(steps) > 1:
            submit(part, steps[1:])
            continue
        in_hand += begin(1) - 1
        run.require_going()
        run.clean_up(part)
        # The number of consecutive parts for which the storage failed.
        outage = outage + 1 if isinstance(error, TransientStorageError) else 0
        if error is not None and (error.fatal or outage == at_once):
            raise error
        result: PartTimes | FailedFile
        if error is None:
            result = future.state.result()
        else:
            result = FailedFile(
                part=part.number,
                source=part.source,
                step=steps[0].name,
                reason=str(error),
                host=platform.node(),
            )
            logger.error("Failed: %s", result)
        progress.finish(result, source_bytes=part.size)
        yield result


def _error(state: State) -> ShardmillError | None:
    """Return the error with which a step failed; None if it succeeded."""
    try:
        return None if state.is_completed() else state.result()
    except ShardmillError as error:
        return error
