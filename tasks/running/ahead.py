"""Parts that workers of this host begin before there is a task for them: while Prefect starts."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from tasks.core.workers.contract import Workers
from tasks.core.workers.jobs import TokenizedPart, TokenizeJob
from tasks.core.workers.messages import JobProgress

Listener = Callable[[JobProgress], None]


def _unheard(_: JobProgress) -> None:
    """Progress that no task listens to yet; the next message tells all that this one did."""


@dataclass(slots=True)
class _Begun:
    """A job on its way."""

    done: Future[TokenizedPart] = field(default_factory=Future)
    listen: Listener = _unheard

    def tell(self, progress: JobProgress) -> None:
        self.listen(progress)


class Ahead:
    """Jobs that were begun, each until its task takes it.

    Args:
        threads: one for each of the jobs, where nothing else waits.
        pool: does them.
    """

    def __init__(self, threads: Executor, pool: Workers) -> None:
        self._threads = threads
        self._pool = pool
        self._begun: dict[int, _Begun] = {}

    def begin(self, job: TokenizeJob, prepared: Future[None]) -> None:
        """Have a part tokenized once the workers are prepared."""
        begun = _Begun()

        def work() -> TokenizedPart:
            prepared.result()
            return self._pool.run(job, begun.tell)

        begun.done = self._threads.submit(work)
        self._begun[job.part.number] = begun

    def take(self, number: int, listen: Listener) -> TokenizedPart | None:
        """Wait for a part that was begun; None where it was not, or was taken before.

        Args:
            number: of the part.
            listen: told of progress from here on.

        Raises:
            ShardmillError: whatever the worker met.
        """
        begun = self._begun.pop(number, None)
        if begun is None:
            return None
        begun.listen = listen
        return begun.done.result()
