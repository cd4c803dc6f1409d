"""One run in progress: what its tasks share. Handed to each task; nothing of it passes Prefect."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from streaming_ext.errors import StoppedError
from streaming_ext.text.fetch import remove_fetched
from streaming_ext.text.parts.part import Part
from tasks.core.planning.run_plan import PartsPlan, RunPlan
from tasks.core.reporting.progress import RunProgress
from tasks.core.storage import Storage
from tasks.core.workers.jobs import FetchedPart
from tasks.core.workers.messages import JobProgress
from tasks.core.workers.pool import WorkerPool
from tasks.running.room import Room

# Tokenizing takes most of a part's time, putting it in place the rest: for the progress bar.
_TOKENIZE_SHARE = 0.95
LOOK_AHEAD_BYTES = 8 * 2**30  # of source files on scratch that no worker has begun


class InHand(Protocol):
    """The means of a run that works through parts on this host, whatever it makes of them."""

    @property
    def plan(self) -> PartsPlan:
        """What is to be done."""
        ...

    @property
    def storage(self) -> Storage:
        """Where it goes."""
        ...

    @property
    def progress(self) -> RunProgress:
        """What people watch."""
        ...

    def require_going(self) -> None:
        """Make sure that the run goes on; see `Run`."""
        ...

    def forget(self, part: Part) -> None:
        """Nothing of a part is needed any more: it is done, or has failed."""
        ...


class Planned:
    """A plan and where it goes: what publishing needs.

    Attributes:
        tell: called with what the run is doing now.
    """

    def __init__(
        self, plan: RunPlan, storage: Storage, tell: Callable[[str], None] = lambda words: None
    ) -> None:
        self.plan = plan
        self.storage = storage
        self.tell = tell


class Run(Planned):
    """The plan and the means of a run on this host."""

    def __init__(
        self,
        plan: RunPlan,
        storage: Storage,
        pool: WorkerPool,
        progress: RunProgress,
        movers: WorkerPool | None = None,
    ) -> None:
        """Put together the means of a run.

        Args:
            plan: what is to be done.
            storage: where it goes.
            pool: workers, one a core.
            progress: what people watch.
            movers: workers that only fetch and upload, so that none of the others waits for the
                network; the others unless given.
        """
        super().__init__(plan, storage, progress.enter)
        self.pool = pool
        self.movers = movers or pool
        self.progress = progress
        self._fetched: dict[int, FetchedPart] = {}
        self.room = Room(LOOK_AHEAD_BYTES, lambda: pool.stopped)

    def require_going(self) -> None:
        """Make sure that the run is not being stopped and still holds the output.

        Raises:
            StoppedError: somebody stopped the workers.
            StorageError: another run took the output over.
        """
        if self.pool.stopped:
            raise StoppedError("the run was stopped")
        self.storage.require_held()

    def fetched(self, part: Part, came: FetchedPart) -> None:
        """Remember what came for a part."""
        self._fetched[part.number] = came

    def fetched_of(self, part: Part) -> FetchedPart | None:
        """What came for a part; None where nothing had to."""
        return self._fetched.get(part.number)

    def paths_of(self, part: Part) -> tuple[str, ...]:
        """Where a part's pieces lie that came; none where their sources lie here."""
        came = self._fetched.get(part.number)
        return came.paths if came else ()

    def forget(self, part: Part) -> None:
        """Remove a part's sources from scratch: it is written, or has failed."""
        self.room.give_back(part.number)
        came = self._fetched.pop(part.number, None)
        for path in map(Path, came.paths if came else ()):
            if path.parent == self.plan.downloads:
                remove_fetched(path)

    def follow(self, part: Part) -> Callable[[JobProgress], None]:
        """A listener for a part's tokenizing."""

        def listen(progress: JobProgress) -> None:
            self.room.give_back(part.number)
            self.progress.update(
                part.number,
                source_bytes=part.size * progress.fraction * _TOKENIZE_SHARE,
                text_bytes=progress.text_bytes,
                tokens=progress.tokens,
            )

        return listen
