"""Working through source files on this host."""

from collections.abc import Iterator

from prefect import get_run_logger

from flows.look_ahead import PartEnd, done_in_any_order
from streaming_ext.errors import ShardmillError
from tasks.core.report import FailedFile, PartTimes
from tasks.run import Part, Run
from tasks.workers import LOOK_AHEAD_FILES


def finished_parts(run: Run) -> Iterator[PartTimes | FailedFile]:
    """Do all parts that are to be done; yields what became of each, in the order in which they end.

    Raises:
        StoppedError: the workers were stopped from elsewhere.
        ShardmillError: a fault that every other part would meet too.
    """
    logger = get_run_logger()
    plan = run.plan
    parts = [Part(number, plan.sources[number]) for number in plan.todo]
    run.progress.begin(files=len(parts), source_bytes=sum(part.source.size for part in parts))
    run.progress.enter("sharding")
    # A part that is being uploaded leaves its worker free for the next one.
    uploading = plan.config.workers if run.storage.remote else 0
    at_once = plan.config.workers + LOOK_AHEAD_FILES + uploading
    for end in done_in_any_order(run, parts, at_once=at_once):
        run.require_going()
        run.forget(end.part)
        fault = _fault(end)
        run.progress.finish(
            end.part.number, source_bytes=end.part.source.size, failed=fault is not None
        )
        if fault is not None:
            logger.error("Failed: %s", fault)
        yield fault or end.state.result()


def _fault(end: PartEnd) -> FailedFile | None:
    """Why a part failed, if it did; a fault that every other part would meet too is raised."""
    if end.state.is_completed():
        return None
    try:
        end.state.result()
    except ShardmillError as error:
        if error.fatal:
            raise
        source = end.part.source.url
        return FailedFile(part=end.part.number, source=source, step=end.step, reason=str(error))
    raise RuntimeError(f"{end.part}: {end.step} ended as {end.state.name} without a reason")
