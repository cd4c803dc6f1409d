"""Those who do jobs: worker processes, or threads of this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from tasks.core.workers.messages import Job, JobProgress, R


class Workers(Protocol):
    """Some who do a job at a time each; see `WorkerPool`."""

    @property
    def stopped(self) -> bool:
        """Whether they were stopped."""
        ...

    def prepare(self, tokenizer_folder: Path, engine: Literal["auto", "reference"]) -> None:
        """Get ready to tokenize."""
        ...

    def run(self, job: Job[R], on_progress: Callable[[JobProgress], None] = ...) -> R:
        """Do a job once somebody is free; blocks until it is done. Called from several threads."""
        ...

    def stop(self) -> None:
        """Give up whatever is in hand."""
        ...
