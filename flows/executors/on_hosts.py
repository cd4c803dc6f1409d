"""The executors that use other hosts: guests make partitions of the parts, and are watched.

A guest is a run of `flows.shard_partition` on any host. Its results and its signs of life pass
through the storage of the dataset (`tasks.core.hosts.cluster`), so a server may restart meanwhile.
A guest that dies is replaced; the records on the output show the next guest what is left.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self, TypedDict
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Cancelled, Crashed

from flows.prefect_api.connection import one_attempt, refuses, shown_url
from flows.terminal.printing import counted, visible
from streaming_ext.base.errors import StorageError, TransientStorageError, UsageError, one_line
from streaming_ext.format.schema import from_json
from streaming_ext.store import Storage
from streaming_ext.store.locations import holds_secret
from tasks.core.engine.build import Build
from tasks.core.hosts.cluster import (
    Heartbeat,
    ParentSign,
    PartitionSign,
    Silence,
    parent_path,
    part_times,
    partition_path,
    put_shared_plan,
    run_folder,
)
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.shard.run_plan import RunPlan
from tasks.core.workers.pool import as_error

POLL_SECONDS = 2.0
START_SECONDS = 120.0  # from the start of a guest to its first sign of life
END_SECONDS = 30.0  # after which stopped guests are given up
OTHERS_SECONDS = 60.0  # for another host to begin, if every guest so far refused
ATTEMPTS_WITHOUT_GAIN = 3
_PAGE = 100  # runs per request
REFUSED = "Refused"  # name of a guest's state if its host cannot work for the run


class GuestParameters(TypedDict):
    """The parameters of `shard_partition`, the flow of a guest."""

    output: str
    run: str
    partition: int
    attempt: int


class Partition:
    """A partition of a run, sent as attempt 1, 2, ... until an attempt ends.

    Attributes:
        number: the number of the partition.
        parts: numbers of its parts.
        attempt: the number of the current attempt, from 1.
        guest: id of the guest of this attempt, once it is started.
        sign: the latest sign of life of this attempt.
        ended: True if nothing is left to do.
        refused: the reason why the host of this attempt cannot work, with its name.
        silence: a measure of how long the guest of this attempt has been silent.
    """

    def __init__(self, number: int, parts: Sequence[int], now: float) -> None:
        """Begin the first attempt; `now` is the time on a monotonic clock."""
        self.number, self.parts = number, tuple(parts)
        self.attempt = self._without_gain = 0
        self.ended = False
        self._known: set[int] = set()  # parts
        self._shown: set[int] = set()  # parts
        self.begin_attempt(now)

    @property
    def left(self) -> list[int]:
        """Parts without a result."""
        return [part for part in self.parts if part not in self._known]

    def begin_attempt(self, now: float) -> None:
        """Begin another attempt."""
        self.attempt += 1
        self.guest: str | None = None
        self.sign: PartitionSign | None = None
        self.refused: str | None = None
        self._known_before = len(self._known)
        self.silence = Silence(now)

    def hear(self, sign: PartitionSign, now: float) -> Iterator[PartTimes | FailedFile]:
        """Note a sign of life of the attempt, and yield the new results in it."""
        self.silence.hear(sign.beat, now)
        self.sign = sign
        results: tuple[PartTimes | FailedFile, ...] = (*sign.done, *sign.failed)
        for result in results:
            if result.part not in self._known:
                self._known.add(result.part)
                yield result

    def show(self, progress: RunProgress) -> None:
        """Show the parts on which the host works."""
        in_hand = () if self.ended or self.sign is None else self.sign.in_hand
        files = {file.part: file for file in in_hand if file.part not in self._known}
        for part in self._shown - set(files):
            progress.give_up(part)
        self._shown = set(files)
        for part, file in files.items():
            progress.step(part, file.source, file.step, file.host)
            progress.update(
                part,
                source_bytes=file.source_bytes,
                text_bytes=file.text_bytes,
                tokens=file.tokens,
            )

    def why_lost(self, state: State | None, now: float) -> str | None:
        """Return the reason why the attempt is lost; None while it may still end by itself.

        Args:
            state: the state of its guest; None if it is not known.
            now: the time on a monotonic clock, in seconds.
        """
        if state is not None and state.is_final():
            if state.name == REFUSED:
                self.refused = state.message
            return f"its run ended as {state.name}: {state.message or 'no reason is known'}"
        host, beat, limit = "its worker", None, START_SECONDS
        if self.sign is not None:
            host, beat, limit = f"host {self.sign.host}", self.sign.beat, self.silence.limit
            if self.sign.stopped:
                return f"it was stopped on {host}"
        elif state is None or state.is_scheduled():
            self.silence.listen_anew(now)  # the guest still waits for a host
        silent = self.silence.hear(beat, now)
        return f"no sign of life from {host} for {silent:.0f} s" if silent > limit else None

    def may_be_sent_again(self) -> bool:
        """Return whether another attempt is worth it, since one of the last few made progress."""
        if self.refused is not None:  # a refused attempt does not count
            return True
        gained = len(self._known) > self._known_before
        self._without_gain = 0 if gained else self._without_gain + 1
        return self._without_gain < ATTEMPTS_WITHOUT_GAIN


class OnHosts(ABC):
    """The executor of a run whose parts are made by guests; see `Executor`.

    Args:
        name: the name of the group of hosts, for people.
        partitions: the largest number of partitions to send.
    """

    def __init__(self, name: str, partitions: int) -> None:
        self._name, self._most = name, partitions
        self._stack = ExitStack()  # closed at the end of each phase
        self._partitions: list[Partition] = []
        self._refusals: list[str] = []
        self._worked = time.monotonic()  # the last time a guest worked, or none had refused yet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @abstractmethod
    def start(self, name: str, parameters: GuestParameters) -> str | None:
        """Start a guest; return its id, or None to be called again later.

        Args:
            name: the name of the attempt.
            parameters: the parameters of `shard_partition`.

        Raises:
            UsageError: no guest can be started.
        """

    @abstractmethod
    def states(self, guests: Sequence[str]) -> dict[str, State]:
        """Return the states of guests, as far as they are known now."""

    @abstractmethod
    def end(self, guests: Sequence[str], state: State) -> None:
        """End the guests that have not ended, with this state."""

    def _prepare(self, plan: RunPlan, storage: Storage) -> None:
        """Put the plan on the storage, and start giving signs of life."""
        self._stack.close()  # ends every guest of the previous phase
        self._storage, self._stopped = storage, False
        # The name must be new if Prefect resumes the flow run, and for the second phase.
        self._run = f"{flow_run.id}-{flow_run.run_count}-{plan.phase}"
        shared = put_shared_plan(plan, storage, self._run, self._most)
        self._partitions = [
            Partition(number, parts, time.monotonic())
            for number, parts in enumerate(shared.partitions)
        ]
        self._heartbeat = Heartbeat(storage, parent_path(self._run), self._sign)
        self._stack.callback(self._remove_signs)
        self._stack.enter_context(self._heartbeat)
        self._stack.callback(self._end_all)

    def __call__(
        self, build: Build, output: Storage, progress: RunProgress
    ) -> Iterator[PartTimes | FailedFile]:
        """Make all parts on other hosts; see `Executor`."""
        assert isinstance(build, RunPlan)  # noqa: S101  (only its configuration names hosts)
        plan, storage = build, output
        self._prepare(plan, storage)
        sizes = {part: plan.parts[part].size for part in plan.todo}
        progress.begin(parts=len(sizes), source_bytes=sum(sizes.values()))
        while waiting := [partition for partition in self._partitions if not partition.ended]:
            for partition in waiting:
                if partition.guest is None:
                    partition.guest = self.start(
                        f"shardmill-{self._run}-{partition.number}-{partition.attempt}",
                        GuestParameters(
                            output=str(storage),
                            run=self._run,
                            partition=partition.number,
                            attempt=partition.attempt,
                        ),
                    )
            progress.enter(describe(self._partitions, self._name, self._refusals[-1:]))
            time.sleep(POLL_SECONDS)
            storage.require_held()
            states = self.states(_guests(waiting))
            for partition in waiting:
                state = states.get(partition.guest or "")
                for result in self._look(partition, state, plan):
                    progress.finish(result, source_bytes=sizes[result.part])
                    yield result
                partition.show(progress)
            self._require_hosts()

    def _look(
        self, partition: Partition, state: State | None, plan: RunPlan
    ) -> Iterator[PartTimes | FailedFile]:
        """Yield the new results of a partition; send it again if its guest is gone."""
        now = time.monotonic()
        try:
            sign = self._read_sign(partition)
        except TransientStorageError:
            partition.silence.listen_anew(now)
            return
        if sign is not None:
            yield from partition.hear(sign, now)
            if sign.in_hand or sign.done:
                self._worked = now
            if sign.fault is not None and sign.ended:
                raise as_error(sign.fault)
            if sign.ended:
                partition.ended = True
                # An attempt that was killed may have made parts without reporting them.
                yield from part_times(self._storage, plan, partition.left)
                return
        if (reason := partition.why_lost(state, now)) is None:
            return
        get_run_logger().warning("Partition %d: %s", partition.number, reason)
        self.end(_guests([partition]), Crashed(message=f"Given up: {reason}."))
        if partition.refused is not None:
            self._refusals.append(partition.refused)
        if partition.may_be_sent_again():
            partition.begin_attempt(now)
            self._heartbeat.beat_if_possible()  # shows guests which attempt counts
            return
        partition.ended = True
        for part in partition.left:
            yield FailedFile(
                part=part,
                source=plan.parts[part].source,
                step="partition",
                reason=f"{partition.attempt} attempts at partition {partition.number} were lost, "
                f"the last {ATTEMPTS_WITHOUT_GAIN} without a part done: {reason}.",
            )

    def _require_hosts(self) -> None:
        """Make sure that a host works, or that none has refused yet.

        Raises:
            StorageError: every host that took a partition refused it, for too long.
        """
        if not self._refusals:
            self._worked = time.monotonic()
        elif time.monotonic() - self._worked > OTHERS_SECONDS:
            reasons = "\n  ".join(dict.fromkeys(self._refusals))
            raise StorageError(
                f"No host of {self._name} can work for this run:\n  {reasons}\n"
                "The output must have the same path or URL on every host; see "
                "docs/operate/clusters.md."
            )

    def _sign(self, beat: int) -> ParentSign:
        attempts = tuple(partition.attempt for partition in self._partitions)
        return ParentSign(beat=beat, attempts=attempts, stopped=self._stopped)

    def _read_sign(self, partition: Partition) -> PartitionSign | None:
        path = partition_path(self._run, partition.number, partition.attempt)
        try:
            return from_json(PartitionSign, self._storage.read(path), where=path)
        except FileNotFoundError:
            return None

    def _end_all(self) -> None:
        """End every guest before the output is released; parts in progress are given up."""
        self._stopped = True
        self._heartbeat.beat_if_possible()  # the sign alone ends live guests within seconds
        started = [partition for partition in self._partitions if partition.guest is not None]
        working, deadline = started, time.monotonic() + END_SECONDS
        while working and time.monotonic() < deadline:
            states = self.states(_guests(working))
            working = [each for each in working if self._is_working(each, states)]
            time.sleep(POLL_SECONDS if working else 0)
        self.end(_guests(started), Cancelled(message="Stopped with the parent run."))

    def _is_working(self, partition: Partition, states: dict[str, State]) -> bool:
        """Return whether a guest has started and not ended, as far as that is known."""
        if (state := states.get(partition.guest or "")) is not None:
            return not (state.is_final() or state.is_scheduled())
        sign = None
        with suppress(StorageError):
            sign = self._read_sign(partition)
        return sign is not None and not (sign.stopped or sign.ended)

    def _remove_signs(self) -> None:
        with suppress(StorageError):  # the next run removes what is left
            for path in self._storage.list(run_folder(self._run)):
                self._storage.remove(path)


def _guests(partitions: Iterable[Partition]) -> list[str]:
    return [partition.guest for partition in partitions if partition.guest is not None]


def partition_name(parameters: Mapping[str, Any]) -> str:
    """Return the name of a guest's flow run, by the parameters of `shard_partition`."""
    output = "an output: refused" if holds_secret(parameters["output"]) else parameters["output"]
    return visible(f"partition {parameters['partition']} of {output}")


def describe(partitions: Sequence[Partition], name: str, refusals: Sequence[str]) -> str:
    """Describe the work of a run on other hosts."""
    signs = [partition.sign for partition in partitions if not partition.ended]
    if hosts := {sign.host for sign in signs if sign is not None}:
        return f"sharding on {counted(len(hosts), 'host')}"
    refused = "".join(f"; refused by {refusal}" for refusal in refusals)
    return f"waiting for a worker of {name}{refused}"


class WorkPool(OnHosts):
    """The executor `prefect://FLOW/DEPLOYMENT`: guests are runs of a deployment.

    Every host whose worker polls the deployment's work pool takes one partition after another, so
    hosts may come and go. Prefect starts, shows and cancels the runs.

    Args:
        client: the client of the server.
        deployment: the name of the deployment, FLOW/DEPLOYMENT.
        partitions: the largest number of partitions to send.

    Raises:
        UsageError: there is no such deployment.
    """

    def __init__(self, client: SyncPrefectClient, deployment: str, partitions: int) -> None:
        self._client, self._deployment = client, deployment
        self._option = f"--executor prefect://{deployment}"
        try:
            found = client.read_deployment_by_name(deployment)
        except ObjectNotFound as error:
            raise UsageError(
                f"{self._option}: the Prefect server at {shown_url(str(client.api_url))} has no "
                "such deployment. Set PREFECT_API_URL, and make it with `prefect deploy` "
                "(docs/how-to/several-hosts.md)."
            ) from error
        super().__init__(f"the work pool {found.work_pool_name or '?'}", partitions)

    def start(self, name: str, parameters: GuestParameters) -> str | None:
        """Start a run for an attempt; another call for this attempt returns the same run.

        Raises:
            UsageError: the deployment is gone, or cannot take a partition.
        """
        try:
            created = run_deployment(
                self._deployment,
                parameters=dict(parameters),
                timeout=0,
                idempotency_key=name,
                flow_run_name=partition_name(parameters),  # for the time until the flow sets it
            )
        except ObjectNotFound as error:
            raise UsageError(
                f"{self._option}: the deployment was deleted. Make it with `prefect deploy` "
                "(docs/how-to/several-hosts.md) and run the same command again to resume."
            ) from error
        except httpx.HTTPError as error:
            if not refuses(error):
                return None
            raise UsageError(
                f"{self._option}: the Prefect server starts no run of it for a partition. Is it of "
                f"the flow shard-partition? {one_line(error)} {error.response.text[:300]}"
            ) from error
        assert isinstance(created, FlowRun)  # noqa: S101  (it is no coroutine here)
        return str(created.id)

    def states(self, guests: Sequence[str]) -> dict[str, State]:
        """Return the states of runs; empty if the server does not answer."""
        states: dict[str, State] = {}
        with one_attempt():
            for start in range(0, len(guests), _PAGE):
                ids = [UUID(guest) for guest in guests[start : start + _PAGE]]
                page = FlowRunFilter(id=FlowRunFilterId(any_=ids))
                runs = self._client.read_flow_runs(flow_run_filter=page, limit=_PAGE)
                states |= {str(run.id): run.state for run in runs if run.state is not None}
            for deleted in set(guests) - set(states):
                states[deleted] = Crashed(message="somebody deleted it")
        return states

    def end(self, guests: Sequence[str], state: State) -> None:
        """Set the state of runs that have not ended."""
        for guest, now in self.states(guests).items():
            if not now.is_final():
                with one_attempt():
                    self._client.set_flow_run_state(UUID(guest), state, force=True)


@contextmanager
def on_work_pool(deployment: str, *, partitions: int) -> Iterator[WorkPool]:
    """Use a deployment as executor; when the block ends, all its runs of guests have ended.

    Raises:
        UsageError: there is no such deployment.
    """
    with (
        get_client(sync_client=True) as client,
        WorkPool(client, deployment, partitions) as executor,
    ):
        yield executor
