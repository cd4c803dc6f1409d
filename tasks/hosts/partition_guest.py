"""One host's work on a partition of a run, and the signs of life that it gives meanwhile."""

import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Failed

from streaming_ext.dataset.schema import to_json
from streaming_ext.errors import ShardmillError, StoppedError, StorageError
from tasks.core.cluster.heartbeat import BEAT_SECONDS, Heartbeat, Pulse
from tasks.core.cluster.last_sign import told_if_killed
from tasks.core.cluster.messages import (
    FileInHand,
    ParentSign,
    PartitionSign,
    SharedPlan,
    partition_path,
)
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.storage import Storage
from tasks.core.workers.messages import Failure
from tasks.hosts.guest import UNFIT, CannotTakePartError, Guest, refusing
from tasks.running.prefect_api import asked_once

REFUSED = "Refused"  # the state of a run whose host cannot work for it
REFUSE_SECONDS = 300.0  # that such a host takes nothing else; then it may have been mended
REFUSE_SECONDS_TRANSIENT = 20.0  # where storage may answer again


class PartitionGuest(Guest):
    """One attempt at a partition on this host: what came of it so far, told to the parent run."""

    def __init__(self, storage: Storage, run: str, number: int, attempt: int) -> None:
        super().__init__(storage, run, f"{number:05}-{attempt}")
        self.number = number
        self.attempt = attempt
        self._ended = False
        self._given_up = False
        self._fault: Failure | None = None
        self._worker = os.getppid()
        self._path = partition_path(run, number, attempt)
        self._heartbeat = Heartbeat(storage, self._path, self._sign)

    def parts_of(self, shared: SharedPlan) -> Sequence[int]:
        """The parts of the partition."""
        return shared.partitions[self.number]

    def why_superseded(self, sign: ParentSign) -> str | None:
        """Whether the partition was sent again meanwhile."""
        attempt = sign.attempts[self.number]
        return None if attempt == self.attempt else f"the parent run counts on attempt {attempt}"

    def why_orphaned(self) -> str | None:
        """Whether the worker that started this process is gone: none of Prefect's ends it then."""
        return None if os.getppid() == self._worker else "the worker that started it is gone"

    def _sign(self, beat: int) -> bytes:
        _, results = self.progress.files()
        in_hand = tuple(
            FileInHand(
                part=file.part,
                step=file.step,
                source_bytes=source_bytes,
                text_bytes=file.text_bytes,
                tokens=file.tokens,
            )
            for file, source_bytes in self.progress.in_hand()
        )
        return to_json(
            PartitionSign(
                beat=beat,
                host=platform.node(),
                in_hand=in_hand,
                done=tuple(result for result in results if isinstance(result, PartTimes)),
                failed=tuple(result for result in results if isinstance(result, FailedFile)),
                ended=self._ended,
                stopped=self._given_up,
                fault=self._fault,
            )
        )

    @contextmanager
    def giving_signs(self) -> Iterator[None]:
        """Show that this attempt lives for the length of the block, and then how it ended.

        Raises:
            StoppedError: the parent run is over; or for what the block raised when the parent run
                stopped it or was gone.
            CannotTakePartError: this host cannot work for the run; of this no sign tells.
        """
        self.join(Pulse())  # before anything is put beside a run that is over
        with refusing(*UNFIT):
            self._heartbeat.beat()
        with told_if_killed(self.storage, self._path), self._heartbeat:
            try:
                yield
                self._ended = True
            except CannotTakePartError:
                raise
            except BaseException as error:
                if isinstance(error, ShardmillError) and self.stopped is not None:
                    raise StoppedError(self.stopped) from error
                if isinstance(error, ShardmillError) and not error.transient:
                    message = f"{error} (on host {platform.node()})"
                    self._fault = Failure(error=type(error).__name__, message=message)
                    self._ended = True
                self._given_up = not self._ended
                raise
            finally:
                if self._ended or self._given_up:
                    with suppress(StorageError):  # the parent run sees it by the silence then
                        self._heartbeat.beat()

    def refuse(self, refusal: CannotTakePartError) -> State:
        """Have the parent run send the partition again, and keep from being given another one.

        A host that cannot work would take one partition after the other, faster than any that can.
        So Prefect knows this run as ended while its process stays, and the worker of a host with
        one run at a time takes no other.
        """

        def refused() -> State:
            return Failed(name=REFUSED, message=str(refusal))

        with asked_once(), get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(str(flow_run.id)), refused(), force=True)
        seconds = REFUSE_SECONDS_TRANSIENT if refusal.transient else REFUSE_SECONDS
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not (self.why_orphaned() or self._told_by_prefect()):
            time.sleep(BEAT_SECONDS)
        return refused()
