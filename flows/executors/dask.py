"""The executor `dask://HOST:PORT`: the workers of a Dask cluster that stands already.

Each part is one task of the cluster; Dask gives those of a worker that died to others. The
text passes through processes of the project's own beside each Dask worker, as on a single host, and
they end with the run as those of partitions do (`tasks.hosts.guest`).
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from distributed import CancelledError, Future, KilledWorker, as_completed
from prefect import get_run_logger
from prefect_dask.task_runners import DaskTaskRunner

from flows.executors.parent import Parent
from flows.executors.progress import count
from streaming_ext.errors import ShardmillError, StorageError, UsageError
from tasks.core.planning.run_plan import RunPlan
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.storage import Storage
from tasks.hosts.guest import CannotTakePartError
from tasks.shard_part import is_at_work, shard_part

END_SECONDS = 30.0  # for what is in hand when the run is stopped
POLL_SECONDS = 0.5
START_SECONDS = 15.0


class OnDask:
    """The workers of a cluster."""

    def __init__(self, runner: DaskTaskRunner, stack: ExitStack) -> None:
        self._runner = runner
        self._stack = stack
        self._futures: dict[Future[Any], int] = {}
        self._refusals: dict[str | None, str] = {}  # by worker
        self._logger = get_run_logger()

    def prepare(self, plan: RunPlan, storage: Storage) -> None:
        """Put what the hosts need on the storage, and begin to give signs of life."""
        self._stack.close()  # of the stage before: nothing of it is left on any host
        self._futures.clear()
        self._parent = Parent(plan, storage, partitions=1)
        self._stack.enter_context(self._parent.living(storage))
        self._stack.callback(self._end)

    def finished(
        self, plan: RunPlan, storage: Storage, progress: RunProgress
    ) -> Iterator[PartTimes | FailedFile]:
        """Do all parts on the cluster; see `Executor`."""
        sizes = {part: plan.parts[part].size for part in plan.todo}
        progress.begin(parts=len(sizes), source_bytes=sum(sizes.values()))
        progress.enter("sharding on a Dask cluster")
        first = [self._submit(part, storage) for part in plan.todo]
        with self._runner.client.as_current():
            ended = as_completed(first)  # type: ignore[no-untyped-call]
        for future in ended:
            storage.require_held()
            part = self._futures[future]
            try:
                result = _result(future, part, plan)
            except CannotTakePartError as refusal:
                self._logger.warning("Part %d: refused by %s", part, refusal)
                self._refusals[refusal.worker] = str(refusal)
                ended.add(self._submit(part, storage))  # type: ignore[no-untyped-call]
                continue
            count(result, sizes[result.part], progress)
            yield result

    def _submit(self, part: int, storage: Storage) -> "Future[Any]":
        """Have a worker do a part, one that did not refuse before.

        Raises:
            StorageError: all workers did.
        """
        chosen = None
        if self._refusals:
            there = self._runner.client.scheduler_info(n_workers=-1)["workers"]
            chosen = sorted(set(there) - set(self._refusals))
            if not chosen:
                told = "\n  ".join(dict.fromkeys(self._refusals.values()))
                raise StorageError(
                    f"No worker of the Dask cluster can work for this run:\n  {told}\n"
                    "The output must be reached by the same name from every host."
                )
        future: Future[Any] = self._runner.client.submit(  # type: ignore[no-untyped-call]
            shard_part,
            parameters={"output": str(storage), "run": self._parent.run, "number": part},
            workers=chosen,
            return_type="state",
        )
        self._futures[future] = part
        return future

    def _end(self) -> None:
        """Have nothing of the run left on any host before the output is let go."""
        self._parent.stop()  # processes in hand are ended by those who started them
        client = self._runner.client
        with suppress(OSError, TimeoutError):  # where the scheduler is gone, the above remains
            client.cancel(list(self._futures), force=True)  # type: ignore[no-untyped-call]
            deadline = time.monotonic() + END_SECONDS
            while time.monotonic() < deadline:
                if not any(client.run(is_at_work, self._parent.run).values()):
                    return
                time.sleep(POLL_SECONDS)


def _result(future: Future[Any], part: int, plan: RunPlan) -> PartTimes | FailedFile:
    """What became of a part; a refusal, or a fault that every other one would meet, is raised."""
    try:
        result: PartTimes | FailedFile = future.result().result()
    except CannotTakePartError:
        raise
    except StorageError as error:
        if error.fatal:
            raise
        fault: Exception = error
    except (ShardmillError, KilledWorker, CancelledError) as error:
        fault = error
    else:
        return result
    source = plan.parts[part].source
    return FailedFile(part=part, source=source, step="shard", reason=str(fault))


@contextmanager
def on_dask(address: str) -> Iterator[OnDask]:
    """Reach a cluster; nothing of the run is left there when the block ends.

    Args:
        address: of its scheduler, `tcp://HOST:PORT` or `tls://HOST:PORT`.

    Raises:
        UsageError: nobody answers there.
    """
    with DaskTaskRunner(address=address, client_kwargs={"timeout": START_SECONDS}) as runner:
        try:
            runner.client.wait_for_workers(1, timeout=START_SECONDS)
        except (OSError, TimeoutError) as error:
            raise UsageError(
                f"No Dask cluster with a worker answers at {address} within {START_SECONDS:.0f} s: "
                f"{error}."
            ) from error
        with ExitStack() as stack:
            yield OnDask(runner, stack)
