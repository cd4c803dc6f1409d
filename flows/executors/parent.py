"""The parent run's side of what passes between hosts over the storage."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prefect.runtime import flow_run

from streaming_ext.dataset.schema import to_json
from streaming_ext.errors import StorageError
from tasks.core.cluster.heartbeat import Heartbeat
from tasks.core.cluster.messages import ParentSign, parent_path, remove_run_folder, run_name
from tasks.core.cluster.shared_plan import put_shared_plan
from tasks.core.planning.run_plan import RunPlan
from tasks.core.storage import Storage


class Parent:
    """The run that planned and will publish, as other hosts see it.

    Attributes:
        run: its name among the hosts.
        partitions: the parts of each.
        attempts: which attempt at each partition counts; 0 before the first.
    """

    def __init__(self, plan: RunPlan, storage: Storage, partitions: int) -> None:
        self.run = run_name(
            str(flow_run.id), flow_run.run_count, "gather" if plan.stage == "gather" else ""
        )
        self.partitions = put_shared_plan(plan, storage, self.run, partitions).partitions
        self.attempts = [0] * len(self.partitions)
        self._stopped = False
        self._heartbeat = Heartbeat(storage, parent_path(self.run), self._sign)

    def _sign(self, beat: int) -> bytes:
        sign = ParentSign(beat=beat, attempts=tuple(self.attempts), stopped=self._stopped)
        return to_json(sign)

    def tell(self) -> None:
        """Have the hosts know now what changed; where that fails, the next sign tells it."""
        with suppress(StorageError):
            self._heartbeat.beat()

    def stop(self) -> None:
        """Have all work end, on every host, in seconds."""
        self._stopped = True
        self.tell()

    @contextmanager
    def living(self, storage: Storage) -> Iterator[None]:
        """Give signs of life until the block ends, and leave nothing of them."""
        try:
            with self._heartbeat:
                yield
        finally:
            remove_run_folder(storage, self.run)
