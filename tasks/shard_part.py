"""Take one part through all steps in a process of a Dask cluster."""

from prefect import task

from streaming_ext.errors import ScratchError, ShardmillError, StoppedError
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.download import download
from tasks.gather import gather
from tasks.hosts.guest import CannotTakePartError, refusing
from tasks.hosts.joined_runs import JoinedRuns
from tasks.running.retrying import OURS
from tasks.running.run import Run
from tasks.tokenize import tokenize
from tasks.write import write

_runs = JoinedRuns()


def means_of(output: str, run: str, workers: int) -> Run:
    """What working for a run takes; by name, as the task goes to the cluster by value."""
    return _runs.means(output, run, workers)


def is_at_work(run: str) -> bool:
    """Whether this process has anything left of a run."""
    return _runs.is_at_work(run)


@task(
    name="shard",
    task_run_name="shard {number:05}",
    retries=3,
    retry_delay_seconds=[1, 5, 20],
    **OURS,
)
def shard_part(output: str, run: str, number: int) -> PartTimes | FailedFile:
    """Download, tokenize and write a part, or gather and write it; see the tasks of these names.

    Args:
        output: of the dataset.
        run: id of the parent's flow run.
        number: of the part.

    Raises:
        StoppedError: the parent run is over.
        CannotTakePartError: this worker cannot work for the run.
        ShardmillError: a fault that every other part would meet too, or one that may pass.
    """
    from distributed import get_worker

    worker = get_worker()
    try:
        means = means_of(output, run, worker.state.nthreads)
    except CannotTakePartError as refusal:
        refusal.worker = worker.address
        raise
    means.require_going()
    part = means.plan.part(number)
    step = "download"
    try:
        with refusing(ScratchError):
            if means.plan.stage == "gather":
                step = "gather"
                tokenized = gather.fn(means, part)
            else:
                if part.remote:
                    download.fn(means, part)
                step = "tokenize"
                tokenized = tokenize.fn(means, part)
        step = "write"
        return write.fn(means, part, tokenized)
    except CannotTakePartError as refusal:
        refusal.worker = worker.address
        raise
    except ShardmillError as error:
        if error.fatal or error.transient or isinstance(error, StoppedError):
            raise
        return FailedFile(part=number, source=part.source, step=step, reason=str(error))
    finally:
        means.forget(part)
