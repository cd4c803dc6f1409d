"""A guest: one attempt at a partition of a run that another host plans and publishes."""

import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from streaming_ext.base.errors import (
    CannotTakePartError,
    ConfigMismatchError,
    NotADatasetError,
    ScratchError,
    ShardmillError,
    StoppedError,
    StorageError,
)
from streaming_ext.format.schema import from_json
from streaming_ext.store import Storage
from streaming_ext.store.scratch import own_folder
from tasks.core.engine.output_files import scratch_base
from tasks.core.engine.run import Run, worker_pools
from tasks.core.hosts.cluster import (
    BEAT_SECONDS,
    Heartbeat,
    ParentSign,
    PartitionSign,
    SharedPlan,
    Silence,
    parent_path,
    partition_path,
    partition_plan,
    read_plan,
)
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.workers.messages import Failure

UNFIT = (StorageError, NotADatasetError, ConfigMismatchError)  # errors before any work


@contextmanager
def refusing(*kinds: type[ShardmillError]) -> Iterator[None]:
    """Treat errors of these kinds in the block as faults of this host, not of the run.

    Raises:
        CannotTakePartError: replaces such an error, and names the host.
    """
    try:
        yield
    except kinds as error:
        raise CannotTakePartError(f"host {platform.node()}: {error}") from error


class Guest:
    """An attempt at a partition on this host.

    Args:
        storage: the storage of the dataset.
        run: the name of the parent run.
        partition: the number of the partition.
        attempt: the number of the attempt.
        workers: the number of workers; None for the plan's.
    """

    def __init__(
        self, storage: Storage, run: str, partition: int, attempt: int, workers: int | None = None
    ) -> None:
        self._storage, self._run = storage, run
        self._partition, self._attempt, self._workers = partition, attempt, workers
        self._progress = RunProgress()
        self._parent = os.getppid()
        self._silence = Silence(time.monotonic())  # the parent run's
        self._heartbeat = Heartbeat(storage, partition_path(run, partition, attempt), self._sign)
        self._stopped: str | None = None  # the reason
        self._ended = self._given_up = False
        self._fault: Failure | None = None

    @contextmanager
    def working(self) -> Iterator[Run]:
        """Open the run with its workers until the block ends, and put signs of life meanwhile.

        The run leaves out parts that are recorded already.

        Raises:
            StoppedError: the parent run is over, or has replaced this guest.
            CannotTakePartError: this host does not reach the output, has no room or other packages.
            TokenizerError: the output holds another tokenizer.
        """
        with refusing(*UNFIT):
            shared = read_plan(self._storage, self._run)
            if (reason := self._reason_to_stop()) is not None:
                raise StoppedError(reason)
            self._heartbeat.beat()
        with self._heartbeat:
            try:
                with self._means(shared) as run:
                    yield run
                self._ended = True
            except CannotTakePartError:  # the flow run reports it
                raise
            except BaseException as error:
                if isinstance(error, ShardmillError) and self._stopped is not None:
                    self._given_up = True
                    raise StoppedError(self._stopped) from error
                if isinstance(error, ShardmillError) and not error.transient:
                    message = f"{error} (on host {platform.node()})"
                    self._fault = Failure(error=type(error).__name__, message=message)
                    self._ended = True
                self._given_up = not self._ended
                raise
            finally:
                if self._ended or self._given_up:
                    self._heartbeat.beat_if_possible()

    @contextmanager
    def _means(self, shared: SharedPlan) -> Iterator[Run]:
        config = shared.execution(self._workers)
        name = f"{self._run}-{self._partition:05}-{self._attempt}"
        with ExitStack() as stack:
            with refusing(*UNFIT):
                folder = own_folder(scratch_base(config, self._storage), name)
                parts = shared.partitions[self._partition]
                scratch = stack.enter_context(folder)
                plan = partition_plan(shared, config, self._storage, parts, scratch)
            pool, movers = stack.enter_context(worker_pools(plan))
            run = Run(plan, self._storage, pool, self._progress, movers)
            stack.enter_context(self._watching_parent(run))
            with refusing(ScratchError):  # another host may have room
                yield run

    @contextmanager
    def _watching_parent(self, run: Run) -> Iterator[None]:
        """Stop the work when the parent run is over or has replaced this guest."""
        ended = threading.Event()

        def watch() -> None:
            try:
                while self._stopped is None and not ended.wait(BEAT_SECONDS):
                    self._stopped = self._reason_to_stop()
            finally:
                if not ended.is_set():  # the parent is not watched any more
                    self._stopped = self._stopped or "the watch over the parent run failed"
                    run.pool.stop()
                    run.movers.stop()

        thread = threading.Thread(target=watch, name="shardmill-parent-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(BEAT_SECONDS)

    def _reason_to_stop(self) -> str | None:
        if os.getppid() != self._parent:
            return "the worker that started this process is gone"
        path, began = parent_path(self._run), time.monotonic()
        try:
            content = self._storage.read(path)
        except FileNotFoundError:
            return "the parent run is over"
        except StorageError:
            self._silence.listen_anew(time.monotonic())
            return None  # the work itself will report what is wrong with the storage
        if (now := time.monotonic()) - began > BEAT_SECONDS:
            self._silence.listen_anew(now)  # the parent's signs are delayed too
        sign = from_json(ParentSign, content, where=f"{self._storage}/{path}")
        silent = self._silence.hear(sign.beat, now)
        if sign.stopped:
            return "the parent run was stopped"
        if (attempt := sign.attempts[self._partition]) != self._attempt:
            return f"the parent run waits for attempt {attempt}"
        gone = f"the parent run is gone: no sign of life for {silent:.0f} s"
        return gone if silent > self._silence.limit else None

    def _sign(self, beat: int) -> PartitionSign:
        in_hand, results = self._progress.files()
        return PartitionSign(
            beat=beat,
            host=platform.node(),
            in_hand=tuple(in_hand),
            done=tuple(result for result in results if isinstance(result, PartTimes)),
            failed=tuple(result for result in results if isinstance(result, FailedFile)),
            ended=self._ended,
            stopped=self._given_up,
            fault=self._fault,
        )
