"""An output that is made of published ones, in progress: what its tasks share."""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from streaming_ext.errors import StoppedError
from streaming_ext.text.parts.part import Part
from tasks.core.outputs.taken_over import Resumable
from tasks.core.planning.run_plan import PartsPlan
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import PartTimes
from tasks.core.storage import Storage
from tasks.core.workers.messages import Job, JobProgress, MadePart
from tasks.core.workers.pool import WorkerPool


class MadePlan(PartsPlan, Resumable, Protocol):
    """What has to be done for such an output."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """All of them, those that are done too."""
        ...

    @property
    def scratch(self) -> Path:
        """The folder for work in progress."""
        ...

    @property
    def published(self) -> bool:
        """Whether the output is whole already."""
        ...

    def job(self, number: int, output: Storage) -> Job[MadePart]:
        """What a worker is to do for a part."""
        ...


Plan = TypeVar("Plan", bound=MadePlan)


class MadeRun(Generic[Plan]):
    """The plan and the means of a run on this host; see `tasks.running.run.InHand`."""

    def __init__(
        self, plan: Plan, storage: Storage, pool: WorkerPool, progress: RunProgress
    ) -> None:
        """Put together the means of a run.

        Args:
            plan: what is to be done.
            storage: where it goes.
            pool: workers, one a core at most.
            progress: what people watch.
        """
        self.plan, self.storage = plan, storage
        self.pool, self.progress = pool, progress

    def require_going(self) -> None:
        """Make sure that the run is not being stopped and still holds the output.

        Raises:
            StoppedError: somebody stopped the workers.
            StorageError: another run took the output over.
        """
        if self.pool.stopped:
            raise StoppedError("the run was stopped")
        self.storage.require_held()

    def forget(self, part: Part) -> None:
        """Nothing lies around of a part."""

    def follow(self, part: Part) -> Callable[[JobProgress], None]:
        """A listener for a part's work."""

        def listen(progress: JobProgress) -> None:
            self.progress.update(
                part.number,
                source_bytes=part.size * progress.fraction,
                text_bytes=progress.text_bytes,
                tokens=progress.tokens,
            )

        return listen

    def do(self, part: Part) -> PartTimes:
        """Have a worker make a part.

        Raises:
            ShardmillError: whatever the worker met.
        """
        self.require_going()
        follow = self.follow(part)
        done = self.pool.run(self.plan.job(part.number, self.storage), on_progress=follow)
        follow(JobProgress(fraction=1.0, text_bytes=done.size, tokens=done.tokens))
        return PartTimes(
            part=part.number,
            source=part.source,
            host=platform.node(),
            text_bytes=done.size,
            tokens=done.tokens,
            documents=done.documents,
            shard_bytes=done.size,
            tokenize_seconds=0.0,
            write_seconds=done.seconds,
        )
