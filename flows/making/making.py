"""What such flows do alike: plan, hold the output, make its parts, publish, report."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed

from flows.dashboard.updates import dashboard
from flows.executors.parts import finished_parts
from flows.executors.stage import STAGES
from flows.flow_body import Begun, HasOutput, leave_record, outcome_of, run_body
from tasks.core.reporting.progress import RunProgress, watched
from tasks.core.reporting.report import (
    FailedFile,
    PartTimes,
    RunReport,
)
from tasks.core.storage import Storage, open_storage
from tasks.core.storage.scratch import drop_scratch
from tasks.core.workers.pool import WorkerPool
from tasks.publish_made import publish_made
from tasks.running.made_run import MadeRun, Plan


class HasWorkers(HasOutput, Protocol):
    """A configuration, as far as these flows take of it."""

    @property
    def workers(self) -> int: ...


Config = TypeVar("Config", bound=HasWorkers)
MOVED_AT_ONCE = 4  # parts: some have one large file, whose put nobody else should wait for


@dataclass(frozen=True, kw_only=True, slots=True)
class Making(Generic[Config, Plan]):
    """What one of these flows does in its own way.

    Attributes:
        done: what has been done in the end, in a word.
        compare: what has to be done; nothing is written.
        prepare: removes what killed runs left on the output, which the run holds, and says there
            what is being made; returns the plan, with what was damaged to be made again.
        begun: the file that says so; gone when the output is whole.
        publish: makes the recorded parts one output.
        at_least: parts at the same time, on however few cores.
    """

    done: str
    compare: Callable[[Config, Storage], Plan]
    prepare: Callable[[Plan, Storage, Callable[[str], None]], Plan]
    begun: str
    publish: Callable[..., object]
    at_least: int = 1

    def run(self, config: Config, output: str | None) -> State:
        """Do all of it within a flow run; returns how that ended.

        Args:
            config: of the run.
            output: in place of the one in `config`, for a deployment that is run on several.
        """
        return run_body(config, output, self._make)

    def _make(self, config: Config) -> State:
        """Plan, make, publish and report."""
        progress = watched()
        progress.run = str(flow_run.id)
        storage = open_storage(config.output)
        with dashboard(progress):  # first, so that workers end before its last update
            progress.enter("looking at what is there")
            plan = self.compare(config, storage)
            with self._ready(plan, config, storage, progress) as run:
                if run is None:
                    return Completed(message=f"{storage} is whole already; nothing to do.")
                report = self._work(run)
                storage.close()
                if not report.failed:
                    drop_scratch(run.plan.scratch)
        progress.report = report
        return outcome_of(report)

    @contextmanager
    def _ready(
        self, plan: Plan, config: Config, storage: Storage, progress: RunProgress
    ) -> Iterator[MadeRun[Plan] | None]:
        """Hold the output, with workers ready; none where another run has made it whole."""
        if plan.published:
            if self.begun in storage.list(self.begun.rpartition("/")[0]):
                storage.remove(self.begun)
            storage.tidy(plan.scratch)
            yield None
            return
        storage.create()
        with storage.exclusive(progress.enter) as lock:
            progress.enter("looking at what is there")
            plan = self.compare(config, storage)  # others may have worked on it
            if plan.published:
                storage.close()
                yield None
                return
            plan = self.prepare(plan, storage, progress.enter)
            at_once = min(max(config.workers, self.at_least), max(1, len(plan.todo)))
            inherited = [] if lock is None else [lock]
            with WorkerPool(at_once, inherited=inherited, light=True) as pool:
                yield MadeRun(plan, storage, pool, progress)

    def _work(self, run: MadeRun[Plan]) -> RunReport:
        """Do all parts that are missing, publish if none failed, and report."""
        plan, progress = run.plan, run.progress
        begun = Begun()
        done: list[PartTimes] = []
        failed: list[FailedFile] = []
        for result in finished_parts(run):
            progress.note(result)
            if isinstance(result, FailedFile):
                failed.append(result)
            else:
                done.append(result)
        if not failed:
            progress.enter(STAGES[plan.stage].behind)
            publish_made(run, self.publish)
        report = begun.report(
            workers=plan.config.workers,
            output=str(run.storage),
            parts=plan.parts,
            todo=plan.todo,
            done=done,
            failed=failed,
        )
        progress.end(self.done)
        leave_record(report, run.storage)
        return report
