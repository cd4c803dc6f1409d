"""Working through parts on this host."""

import platform
from collections.abc import Iterator

from prefect import get_run_logger

from flows.executors.look_ahead import PartEnd, done_in_any_order
from streaming_ext.base.errors import ShardmillError, TransientStorageError
from tasks.core.build.run import LOOK_AHEAD_FILES, Run
from tasks.core.reporting.report import FailedFile, PartTimes


def finished_parts(run: Run) -> Iterator[PartTimes | FailedFile]:
    """Do all parts that are to be done; yields what became of each, in the order in which they end.

    Raises:
        StoppedError: the workers were stopped from elsewhere.
        ShardmillError: a fault that every other part would meet too, or storage that failed all
            parts in hand.
    """
    logger = get_run_logger()
    build = run.build
    parts = [build.part(number) for number in build.todo]
    run.progress.begin(parts=len(parts), source_bytes=sum(part.size for part in parts))
    run.progress.enter(build.words.doing)
    # A part that is being uploaded leaves its worker free for the next one.
    uploading = build.config.workers if run.output.remote else 0
    at_once = build.config.workers + LOOK_AHEAD_FILES + uploading
    outage = 0  # parts that failed in a row because storage did, again and again
    for end in done_in_any_order(run, parts, at_once=at_once):
        run.require_going()
        run.forget(end.part)
        error = _error(end)
        outage = outage + 1 if isinstance(error, TransientStorageError) else 0
        if error is not None and (error.fatal or outage == at_once):
            raise error
        run.progress.finish(end.part.number, source_bytes=end.part.size, failed=error is not None)
        if error is None:
            yield end.state.result()
            continue
        number, source = end.part.number, end.part.source
        failed = FailedFile(
            part=number,
            source=source,
            step=end.step,
            reason=str(error),
            host=platform.node(),
        )
        logger.error("Failed: %s", failed)
        yield failed


def _error(end: PartEnd) -> ShardmillError | None:
    """Why a part failed, if it did."""
    if end.state.is_completed():
        return None
    try:
        end.state.result()
    except ShardmillError as error:
        return error
    raise RuntimeError(f"{end.part}: {end.step} ended as {end.state.name} without a reason")
