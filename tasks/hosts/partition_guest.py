"""One host's work on a partition of a run, and the signs of life that it gives meanwhile."""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from streaming_ext.dataset.manifest import to_json
from streaming_ext.errors import ShardmillError, StoppedError, StorageError
from tasks.core.cluster.heartbeat import Heartbeat
from tasks.core.cluster.partition import (
    FileInHand,
    ParentSign,
    PartitionSign,
    SharedPlan,
    partition_path,
)
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.storage import Storage
from tasks.core.workers.jobs import Failure
from tasks.hosts.guest import Guest


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
        path = partition_path(run, number, attempt)
        self._heartbeat = Heartbeat(storage, path, self._sign)

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
            StoppedError: for what the block raised when the parent run stopped it or was gone.
        """
        with self._heartbeat:
            try:
                yield
                self._ended = True
            except BaseException as error:
                if isinstance(error, ShardmillError) and self.stopped is not None:
                    raise StoppedError(self.stopped) from error
                if isinstance(error, ShardmillError) and not error.transient:
                    self._fault = Failure(error=type(error).__name__, message=str(error))
                    self._ended = True
                raise
            finally:
                self._given_up = not self._ended
                with suppress(StorageError):  # the parent run sees it by the silence then
                    self._heartbeat.beat()
