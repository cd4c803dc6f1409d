"""Working through parts on other hosts: guests take partitions of them, and are watched.

A guest is a run of `flows.shard_partition` on any host. What becomes of the parts, and whether a
guest lives, passes over the storage of the dataset (`tasks.core.cluster`), so a server that
is restarted meanwhile costs nothing. A guest that dies is replaced; the records on the output say
what is left for the next one. How guests are started is all that a work pool and Dask differ in.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Protocol

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Crashed

from streaming_ext.base.errors import StorageError, TransientStorageError
from streaming_ext.format.schema import from_json
from streaming_ext.store import Storage
from streaming_ext.text.parts.part import Part
from tasks.core.cluster.shared_plan import part_times, put_shared_plan
from tasks.core.cluster.signs import (
    Heartbeat,
    ParentSign,
    PartitionSign,
    Pulse,
    parent_path,
    partition_path,
    run_folder,
)
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.shard.run_plan import RunPlan
from tasks.core.workers.pool import as_error

POLL_SECONDS = 2.0
START_SECONDS = 120.0  # from the moment that a guest is started to its first sign of life
END_SECONDS = 30.0  # for guests that are stopped, until they are given up
OTHERS_SECONDS = 60.0  # where every guest so far refused, until others must have come
ATTEMPTS_WITHOUT_GAIN = 3
REFUSED = "Refused"  # state of a guest whose host cannot work for the run


class Launcher(Protocol):
    """How guests are started, and what is known of them beside their signs of life.

    Attributes:
        place: where they are, as people know it.
    """

    place: str

    def start(self, output: str, run: str, partition: int, attempt: int) -> str | None:
        """Start a guest; returns its id, or None where that has to be tried again.

        Raises:
            UsageError: none can be started there.
        """
        ...

    def states(self, guests: Sequence[str]) -> dict[str, State]:
        """The states of those guests of which something is known now."""
        ...

    def end(self, guests: Sequence[str], state: State) -> None:
        """Have guests count as ended that have not."""
        ...


class Partition:
    """A partition of a run. It is sent as attempt 1, 2, ..., until one attempt says that it ended.

    Attributes:
        number: of the partition.
        parts: that it is to do.
        attempt: that is counted on now; 0 before the first.
        guest: id of that attempt, once it is started.
        sign: what that attempt put last.
        ended: nothing more is to be done.
        refused: why a host did not take that attempt, and which.
    """

    def __init__(self, number: int, parts: Sequence[int]) -> None:
        self.number = number
        self.parts = tuple(parts)
        self.attempt = 0
        self.guest: str | None = None
        self.sign: PartitionSign | None = None
        self.ended = False
        self.refused: str | None = None
        self._known: set[int] = set()
        self._shown: dict[int, str] = {}  # part -> step
        self._known_when_sent = 0
        self._without_gain = 0
        self._pulse = Pulse()

    @property
    def left(self) -> list[int]:
        """Parts of which nothing is known yet."""
        return [part for part in self.parts if part not in self._known]

    def begin_attempt(self, now: float) -> None:
        """Count on a new attempt from now on."""
        self.attempt += 1
        self.guest = self.sign = self.refused = None
        self._known_when_sent = len(self._known)
        self._pulse = Pulse(now)

    def hear(self, sign: PartitionSign | None, now: float) -> Iterator[PartTimes | FailedFile]:
        """Take in what the attempt put last; yields what is new."""
        self._pulse.hear(None if sign is None else sign.beat, now)
        if sign is None:
            return
        self.sign = sign
        results: tuple[PartTimes | FailedFile, ...] = (*sign.done, *sign.failed)
        for result in results:
            if result.part not in self._known:
                self._known.add(result.part)
                yield result

    def listen_anew(self, now: float) -> None:
        """Forget how long nothing was heard: nothing could be."""
        self._pulse.listen_anew(now)

    def show(self, parts: Sequence[Part], progress: RunProgress) -> None:
        """Have people see what the host has in hand."""
        files = () if self.ended or self.sign is None else self.sign.in_hand
        files = tuple(file for file in files if file.part not in self._known)
        for part in self._shown.keys() - {file.part for file in files}:
            del self._shown[part]
            if part not in self._known:
                progress.give_up(part)
        for file in files:
            if self._shown.get(file.part) != file.step:
                self._shown[file.part] = file.step
                host = "" if self.sign is None else self.sign.host
                progress.step(file.part, parts[file.part].source, file.step, host)
            progress.update(
                file.part,
                source_bytes=file.source_bytes,
                text_bytes=file.text_bytes,
                tokens=file.tokens,
            )

    def why_lost(self, state: State | None, now: float) -> str | None:
        """Why the attempt will not end by itself; None while it may.

        Args:
            state: of its guest; None where nothing is known of it.
            now: seconds on a monotonic clock.
        """
        if state is not None and state.is_final():
            if state.name == REFUSED:
                self.refused = state.message
            return f"its run ended as {state.name}: {state.message or 'nothing more is known'}"
        if self.sign is None and (state is None or state.is_scheduled()):
            self.listen_anew(now)  # it waits for a host: no time of its own has begun
            return None
        silent = self._pulse.hear(None if self.sign is None else self.sign.beat, now)
        if self.sign is None:
            late = silent > START_SECONDS
            return f"a worker took it, but nothing began in {START_SECONDS:.0f} s" if late else None
        if self.sign.stopped:
            return f"it was stopped on host {self.sign.host}"
        if silent > self._pulse.limit:
            return f"no sign of life from host {self.sign.host} for {silent:.0f} s"
        return None

    def may_be_sent_again(self) -> bool:
        """Whether another attempt is worth it: the last ones got something done."""
        if self.refused is not None:  # no attempt at the work
            return True
        gained = len(self._known) > self._known_when_sent
        self._without_gain = 0 if gained else self._without_gain + 1
        return self._without_gain < ATTEMPTS_WITHOUT_GAIN


class Elsewhere:
    """The executor of a run whose parts guests work on; see `Executor`."""

    def __init__(self, launcher: Launcher, partitions: int, stack: ExitStack) -> None:
        self._launcher = launcher
        self._most = partitions
        self._stack = stack
        self._logger = get_run_logger()
        self._partitions: list[Partition] = []
        self._stopped = False
        self._refusals: list[str] = []
        self._worked = time.monotonic()  # when a guest did that was not refused afterwards

    def prepare(self, plan: RunPlan, storage: Storage) -> None:
        """Put what the hosts need on the storage, and begin to give signs of life."""
        self._stack.close()  # of the phase before: nothing of it is left on any host
        self._storage = storage
        # Resume in Prefect begins a run again, and the hosts of a second phase join anew.
        self._run = f"{flow_run.id}-{flow_run.run_count}-{plan.phase}"
        shared = put_shared_plan(plan, storage, self._run, self._most)
        self._partitions = [Partition(*each) for each in enumerate(shared.partitions)]
        self._stopped = False
        self._heartbeat = Heartbeat(storage, parent_path(self._run), self._sign)
        self._stack.callback(self._remove_signs)
        self._stack.enter_context(self._heartbeat)
        self._stack.callback(self._end_all)

    def finished(
        self, plan: RunPlan, storage: Storage, progress: RunProgress
    ) -> Iterator[PartTimes | FailedFile]:
        """Do all parts on other hosts; see `Executor`."""
        sizes = {part: plan.parts[part].size for part in plan.todo}
        progress.begin(parts=len(sizes), source_bytes=sum(sizes.values()))
        for partition in self._partitions:
            partition.begin_attempt(time.monotonic())
        self._heartbeat.beat_if_possible()
        while waiting := [partition for partition in self._partitions if not partition.ended]:
            for partition in waiting:
                if partition.guest is None:
                    partition.guest = self._launcher.start(
                        str(storage), self._run, partition.number, partition.attempt
                    )
            progress.enter(phase(self._partitions, self._launcher.place, self._refusals[-1:]))
            time.sleep(POLL_SECONDS)
            storage.require_held()
            states = self._launcher.states(_guests(waiting))
            for partition in waiting:
                state = states.get(partition.guest or "")
                for result in self._look(partition, state, plan):
                    _count(result, sizes[result.part], progress)
                    yield result
                partition.show(plan.parts, progress)
            self._require_hosts()

    def _look(
        self, partition: Partition, state: State | None, plan: RunPlan
    ) -> Iterator[PartTimes | FailedFile]:
        """See what became of a partition; send it again where its guest is gone."""
        now = time.monotonic()
        try:
            sign = self._read_sign(partition)
        except TransientStorageError:
            partition.listen_anew(now)
            return
        yield from partition.hear(sign, now)
        if sign is not None and (sign.in_hand or sign.done):
            self._worked = now
        if sign is not None and sign.ended:
            if sign.fault is not None:
                raise as_error(sign.fault)
            partition.ended = True
            # Done by an attempt that was killed before it could report it.
            yield from part_times(self._storage, plan, partition.left)
        elif (reason := partition.why_lost(state, now)) is not None:
            self._logger.warning("Partition %d: %s", partition.number, reason)
            self._launcher.end(_guests([partition]), Crashed(message=f"Given up: {reason}."))
            if partition.refused is not None:
                self._refusals.append(partition.refused)
            if partition.may_be_sent_again():
                partition.begin_attempt(now)
                self._heartbeat.beat_if_possible()  # guests know which attempt counts
                return
            partition.ended = True
            for part in partition.left:
                yield FailedFile(
                    part=part,
                    source=plan.parts[part].source,
                    step="partition",
                    reason=f"{partition.attempt} attempts at partition {partition.number} were "
                    f"lost, the last ones without a part done: {reason}.",
                )

    def _require_hosts(self) -> None:
        """Make sure that some host works, or that none was found unfit yet.

        Raises:
            StorageError: all hosts that took a partition refused it, and no other came.
        """
        if not self._refusals:
            self._worked = time.monotonic()
        elif time.monotonic() - self._worked > OTHERS_SECONDS:
            reasons = "\n  ".join(dict.fromkeys(self._refusals))
            raise StorageError(
                f"No host of {self._launcher.place} can work for this run:\n  {reasons}\n"
                "The output must be reached by the same name from every host "
                "(docs/operate/clusters.md)."
            )

    def _sign(self, beat: int) -> ParentSign:
        attempts = tuple(partition.attempt for partition in self._partitions)
        return ParentSign(beat=beat, attempts=attempts, stopped=self._stopped)

    def _read_sign(self, partition: Partition) -> PartitionSign | None:
        """What the attempt put last; None where nothing is there."""
        path = partition_path(self._run, partition.number, partition.attempt)
        try:
            return from_json(PartitionSign, self._storage.read(path), where=path)
        except FileNotFoundError:
            return None

    def _end_all(self) -> None:
        """Have every guest end before the output is let go; whatever is in hand is given up."""
        self._stopped = True
        self._heartbeat.beat_if_possible()  # this alone ends them in seconds
        begun = [partition for partition in self._partitions if partition.guest is not None]
        at_work, deadline = begun, time.monotonic() + END_SECONDS
        while at_work and time.monotonic() < deadline:
            states = self._launcher.states(_guests(at_work))
            at_work = [each for each in at_work if self._is_at_work(each, states)]
            time.sleep(POLL_SECONDS if at_work else 0)
        self._launcher.end(_guests(begun), Cancelled(message="Stopped with the parent run."))

    def _is_at_work(self, partition: Partition, states: dict[str, State]) -> bool:
        """Whether a guest has begun and not ended, as far as is known."""
        state = states.get(partition.guest or "")
        if state is not None:
            return not (state.is_final() or state.is_scheduled())
        with suppress(StorageError):
            sign = self._read_sign(partition)
            return sign is not None and not (sign.stopped or sign.ended)
        return False

    def _remove_signs(self) -> None:
        with suppress(StorageError):  # else the next run does it
            for path in self._storage.list(run_folder(self._run)):
                self._storage.remove(path)


def _guests(partitions: Iterable[Partition]) -> list[str]:
    return [partition.guest for partition in partitions if partition.guest is not None]


def _count(result: PartTimes | FailedFile, size: int, progress: RunProgress) -> None:
    """A part has ended; `size` of its source, in bytes."""
    failed = isinstance(result, FailedFile)
    if not isinstance(result, FailedFile):
        progress.update(
            result.part, source_bytes=size, text_bytes=result.text_bytes, tokens=result.tokens
        )
    progress.finish(result.part, source_bytes=size, failed=failed)


def phase(partitions: Sequence[Partition], place: str, refusals: Sequence[str]) -> str:
    """What a run on other hosts is doing, in words."""
    waiting = [partition for partition in partitions if not partition.ended]
    hosts = {partition.sign.host for partition in waiting if partition.sign is not None}
    if hosts:
        return f"sharding on {len(hosts)} host{'s' if len(hosts) > 1 else ''}"
    if len(waiting) < len(partitions):
        return f"sharding; {len(waiting)} of {len(partitions)} partitions wait for a host"
    refused = "".join(f"; refused by {refusal}" for refusal in refusals)
    return f"waiting for a worker of {place}{refused}"


@contextmanager
def elsewhere(launcher: Launcher, *, partitions: int) -> Iterator[Elsewhere]:
    """Have guests work on at most so many partitions; all of them have ended with the block."""
    with ExitStack() as stack:
        yield Elsewhere(launcher, partitions, stack)
