"""One run in progress: what its tasks share. Handed to each task; nothing of it passes Prefect."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streaming_ext.errors import ShardmillError
from tasks.core.jobs import Progress
from tasks.core.plan import Plan
from tasks.core.pool import WorkerPool
from tasks.core.progress import RunProgress
from tasks.core.sources import SourceFile
from tasks.core.storage import LocalStorage

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State, TaskRun

# Tokenizing takes most of a part's time, writing the rest: only for the progress bar.
_TOKENIZE_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Part:
    """One source file and its number."""

    number: int
    source: SourceFile

    def __str__(self) -> str:
        return f"{self.number:05} {self.source.name}"


class Run:
    """The plan and the means of a run."""

    def __init__(
        self, plan: Plan, storage: LocalStorage, pool: WorkerPool, progress: RunProgress
    ) -> None:
        self.plan = plan
        self.storage = storage
        self.pool = pool
        self.progress = progress

    def follow(self, part: Part) -> Callable[[Progress], None]:
        """A listener for a part's tokenizing."""

        def listen(progress: Progress) -> None:
            self.progress.update(
                part.number,
                source_bytes=part.source.size * progress.fraction * _TOKENIZE_SHARE,
                text_bytes=progress.text_bytes,
                tokens=progress.tokens,
            )

        return listen


def is_transient(task: Any, task_run: "TaskRun", state: "State[Any]") -> bool:
    """Prefect's question whether to try again: only where that may help, never while stopping."""
    try:
        state.result()
    except ShardmillError as error:
        return error.transient
    except Exception:  # noqa: BLE001  whatever else it was, trying again does not help
        return False
    return False
