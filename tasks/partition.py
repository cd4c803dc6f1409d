"""This host's side of a run on several: the means to work on one partition, and signs of life."""

import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from streaming_ext.errors import ShardmillError, StoppedError, StorageError
from streaming_ext.manifest import from_json, to_json
from tasks.core.config import ShardConfig
from tasks.core.heartbeat import BEAT_SECONDS, SILENT_SECONDS, Heartbeat, Pulse
from tasks.core.jobs import Failure, PrepareJob, Progress
from tasks.core.partition import (
    ParentSign,
    PartitionSign,
    parent_path,
    partition_path,
    partition_plan,
    read_plan,
)
from tasks.core.plan import scratch_base
from tasks.core.progress import RunProgress
from tasks.core.report import FailedFile, PartTimes
from tasks.core.storage import Storage
from tasks.core.storage.scratch import own_folder
from tasks.prefect_api import asked_once
from tasks.run import Run
from tasks.workers import worker_pools


class Partition:
    """One attempt at a partition on this host: what came of it so far, told to the parent run."""

    def __init__(self, storage: Storage, run: str, number: int, attempt: int) -> None:
        self.storage = storage
        self.run = run
        self.number = number
        self.attempt = attempt
        self.progress = RunProgress()
        self._done: list[PartTimes] = []
        self._failed: list[FailedFile] = []
        self._ended = False
        self._given_up = False
        self._fault: Failure | None = None
        self._stopped: str | None = None
        path = partition_path(run, number, attempt)
        self._heartbeat = Heartbeat(storage, path, self._sign)

    def _sign(self, beat: int) -> bytes:
        source_bytes, text_bytes, tokens = self.progress.in_hand()
        return to_json(
            PartitionSign(
                beat=beat,
                host=platform.node(),
                source_bytes=source_bytes,
                in_hand=Progress(fraction=0.0, text_bytes=text_bytes, tokens=tokens),
                done=tuple(self._done),
                failed=tuple(self._failed),
                ended=self._ended,
                stopped=self._given_up,
                fault=self._fault,
            )
        )

    def note(self, result: PartTimes | FailedFile) -> None:
        """A part is done, or has failed."""
        if isinstance(result, FailedFile):
            self._failed.append(result)
        else:
            self._done.append(result)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Show that this attempt lives for the length of the block, and then how it ended.

        Raises:
            StoppedError: for what the block raised when the parent run stopped it or was gone.
        """
        with self._heartbeat:
            try:
                yield
                self._ended = True
            except BaseException as error:
                if isinstance(error, ShardmillError) and self._stopped is not None:
                    raise StoppedError(self._stopped) from error
                if isinstance(error, ShardmillError) and not error.transient:
                    self._fault = Failure(error=type(error).__name__, message=str(error))
                    self._ended = True
                raise
            finally:
                self._given_up = not self._ended
                with suppress(StorageError):  # the parent run sees it by the silence then
                    self._heartbeat.beat()

    @contextmanager
    def means(self) -> Iterator[Run]:
        """All that working on the partition takes, on this host, until the block ends.

        Raises:
            NotADatasetError, ConfigMismatchError: this host cannot take part in the run.
            TokenizerError, StorageError: the output does not hold what it should.
        """
        pulse = Pulse()
        if (reason := self._reason_to_stop(pulse)) is not None:
            self._stopped = reason
            raise StoppedError(reason)
        shared = read_plan(self.storage, self.run)
        config = ShardConfig.model_validate(shared.config)
        name = f"{self.run[:8]}-{self.number:05}-{self.attempt}"
        with own_folder(scratch_base(config, self.storage), name) as scratch:
            plan = partition_plan(
                shared, self.storage, self.number, scratch, resumed=self.attempt > 1
            )
            with worker_pools(config, max(len(plan.todo), 1)) as (pool, movers):

                def stop(reason: str) -> None:
                    self._stopped = reason
                    pool.stop()
                    movers.stop()

                with self._watching_parent(pulse, stop):
                    pool.run_in_each(
                        PrepareJob(
                            tokenizer_folder=str(plan.tokenizer_folder), engine=config.engine
                        )
                    )
                    yield Run(plan, self.storage, pool, self.progress, movers)

    @contextmanager
    def _watching_parent(self, pulse: Pulse, stop: Callable[[str], None]) -> Iterator[None]:
        """Call `stop` with the reason when the parent run is over or counts on this no more."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(BEAT_SECONDS):
                reason = self._reason_to_stop(pulse)
                if reason is not None:
                    stop(reason)
                    return

        thread = threading.Thread(target=watch, name="shardmill-parent-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(BEAT_SECONDS)

    def _reason_to_stop(self, pulse: Pulse) -> str | None:
        return self._told_by_storage(pulse) or self._told_by_prefect()

    def _told_by_prefect(self) -> str | None:
        # Of a parent run that a worker started it knows at once how it ended.
        with asked_once(), get_client(sync_client=True) as client:
            try:
                state = client.read_flow_run(UUID(self.run)).state
            except ObjectNotFound:
                return "the parent run was deleted"
            if state is not None and (state.is_final() or state.is_cancelling()):
                return f"the parent run is {state.name}"
        return None

    def _told_by_storage(self, pulse: Pulse) -> str | None:
        path = parent_path(self.run)
        try:
            content = self.storage.read(path)
        except FileNotFoundError:
            return "the parent run is over"
        except StorageError:
            return None  # nothing is known; the work itself meets what is wrong with the storage
        sign = from_json(ParentSign, content, where=f"{self.storage}/{path}")
        if sign.stopped:
            return "the parent run was stopped"
        if sign.attempts[self.number] != self.attempt:
            return f"the parent run counts on attempt {sign.attempts[self.number]} now"
        if pulse.silent_for(content) > SILENT_SECONDS:
            return f"the parent run is gone: no sign of life for {SILENT_SECONDS:.0f} s"
        return None
