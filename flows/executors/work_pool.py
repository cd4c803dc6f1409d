"""The executor `prefect://FLOW/DEPLOYMENT`: a run of `shard-partition` a partition.

Any host whose worker polls the deployment's work pool takes one after another, so hosts may come
and go. Prefect starts, shows and cancels the runs; what became of the parts, and whether a host
still lives, is told over the dataset's storage (`tasks.core.cluster.messages`), so a server that
is restarted meanwhile costs nothing.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Cancelling, Crashed

from flows.executors.deployment import PartitionDeployment, find_deployment
from flows.executors.parent import Parent
from flows.executors.progress import count
from flows.executors.sent_partition import SentPartition
from streaming_ext.dataset.schema import from_json
from streaming_ext.errors import StorageError, TransientStorageError
from tasks.core.cluster.messages import PartitionSign, partition_path
from tasks.core.cluster.shared_plan import part_times
from tasks.core.planning.run_plan import RunPlan
from tasks.core.reporting.progress import RunProgress
from tasks.core.reporting.report import FailedFile, PartTimes
from tasks.core.storage import Storage
from tasks.core.workers.pool import as_error
from tasks.running.prefect_api import asked_once

POLL_SECONDS = 2.0
END_SECONDS = 30.0  # for runs that are cancelled, until they are given up
OTHERS_SECONDS = 60.0  # where all that took a partition refused it, until others must have come
_PAGE = 100  # runs a question
States = dict[UUID | None, State]


class OnWorkPool:
    """The runs of one `shard-dataset` run on other hosts."""

    def __init__(self, deployment: PartitionDeployment, partitions: int, stack: ExitStack) -> None:
        self._deployment = deployment
        self._most = partitions
        self._stack = stack
        self._partitions: list[SentPartition] = []
        self._logger = get_run_logger()
        self._worked = False  # any host
        self._refusals: list[str] = []
        self._since = time.monotonic()

    def prepare(self, plan: RunPlan, storage: Storage) -> None:
        """Put what the hosts need on the storage, and begin to give signs of life."""
        self._stack.close()  # of the stage before: nothing of it is left on any host
        self._storage = storage
        self._parent = Parent(plan, storage, self._most)
        self._partitions = [
            SentPartition(*partition) for partition in enumerate(self._parent.partitions)
        ]
        self._stack.enter_context(self._parent.living(storage))
        self._client = self._stack.enter_context(get_client(sync_client=True))
        self._stack.callback(self._end_all)

    def finished(
        self, plan: RunPlan, storage: Storage, progress: RunProgress
    ) -> Iterator[PartTimes | FailedFile]:
        """Do all parts on the hosts of the work pool; see `Executor`."""
        sizes = {part: plan.parts[part].size for part in plan.todo}
        progress.begin(parts=len(sizes), source_bytes=sum(sizes.values()))
        for partition in self._partitions:
            self._send(partition)
        while waiting := [partition for partition in self._partitions if not partition.ended]:
            progress.enter(phase(self._partitions, self._deployment.work_pool, self._refusals[-1:]))
            time.sleep(POLL_SECONDS)
            storage.require_held()
            for partition in waiting:
                if partition.flow_run is None:
                    self._submit(partition)
            states = self._states(waiting)
            for partition in waiting:
                for result in self._look(partition, states, plan):
                    count(result, sizes[result.part], progress)
                    yield result
                partition.show(plan.parts, progress)
            self._require_hosts()

    def _require_hosts(self) -> None:
        """Make sure that some host works, or that none was found unfit yet.

        Raises:
            StorageError: all hosts that took a partition refused it, and no other came.
        """
        if self._worked or not self._refusals:
            self._since = time.monotonic()
        elif time.monotonic() - self._since > OTHERS_SECONDS:
            told = "\n  ".join(dict.fromkeys(self._refusals))
            raise StorageError(
                f"No host of the work pool {self._deployment.work_pool} can work for this run:\n"
                f"  {told}\n"
                "The output must be reached by the same name from every host (docs/clusters.md)."
            )

    def _send(self, partition: SentPartition) -> None:
        """Have a worker take the partition, as a new attempt."""
        partition.begin_attempt(time.monotonic())
        self._parent.attempts[partition.number] = partition.attempt
        self._parent.tell()
        self._submit(partition)

    def _submit(self, partition: SentPartition) -> None:
        partition.flow_run = self._deployment.start_run(
            str(self._storage), self._parent.run, partition.number, partition.attempt
        )

    def _states(self, partitions: Sequence[SentPartition]) -> States:
        """The states of the partitions' runs; none where the server does not answer."""
        ids = [partition.flow_run for partition in partitions if partition.flow_run is not None]
        states: States = {}
        with asked_once():
            for start in range(0, len(ids), _PAGE):
                page = FlowRunFilter(id=FlowRunFilterId(any_=ids[start : start + _PAGE]))
                runs = self._client.read_flow_runs(flow_run_filter=page, limit=_PAGE)
                states |= {run.id: run.state for run in runs if run.state is not None}
            for deleted in set(ids) - set(states):
                states[deleted] = Crashed(message="somebody deleted it")
        return states

    def _look(
        self, partition: SentPartition, states: States, plan: RunPlan
    ) -> Iterator[PartTimes | FailedFile]:
        """See what a partition tells; send it again where its host is gone."""
        state = states.get(partition.flow_run)
        if _waits(partition, states):
            partition.listen_anew(time.monotonic())
            return
        try:
            content = self._read_sign(partition)
        except TransientStorageError:
            partition.listen_anew(time.monotonic())
            return
        sign = None
        if content is not None:
            sign = from_json(PartitionSign, content, where=f"{self._storage}: a sign of life")
        yield from partition.hear(content, sign, time.monotonic())
        self._worked = self._worked or (sign is not None and bool(sign.in_hand or sign.done))
        if sign is not None and sign.ended:
            if sign.fault is not None:
                raise as_error(sign.fault)
            partition.ended = True
            # Done by an attempt that was killed before it could tell.
            yield from part_times(self._storage, plan, partition.left)
        elif (reason := partition.why_lost(state, time.monotonic())) is not None:
            self._logger.warning("Partition %d: %s", partition.number, reason)
            self._end([partition], Crashed(message=f"Given up: {reason}."))
            if partition.refused is not None:
                self._refusals.append(partition.refused)
                self._worked = False  # until another host is seen at work
            if partition.may_be_sent_again():
                self._send(partition)
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

    def _read_sign(self, partition: SentPartition) -> bytes | None:
        """What the partition's attempt tells of itself; None where nothing can be read."""
        try:
            return self._storage.read(
                partition_path(self._parent.run, partition.number, partition.attempt)
            )
        except FileNotFoundError:
            return None

    def _is_stopped(self, partition: SentPartition) -> bool:
        """Whether the partition's host tells that nothing of it runs; the server hears it later."""
        with suppress(StorageError):
            content = self._read_sign(partition)
            return content is not None and PartitionSign.model_validate_json(content).stopped
        return False

    def _end(self, partitions: Sequence[SentPartition], state: State) -> None:
        """Say of runs that have not ended that they have."""
        states = self._states(partitions)
        for partition in partitions:
            now = states.get(partition.flow_run)
            if now is not None and not now.is_final():
                self._set(partition, state)

    def _set(self, partition: SentPartition, state: State) -> None:
        assert partition.flow_run is not None  # noqa: S101  (of runs that Prefect has)
        with asked_once():
            self._client.set_flow_run_state(partition.flow_run, state, force=True)

    def _end_all(self) -> None:
        """Have every run ended before the output is let go; whatever is in hand is given up."""
        self._parent.stop()  # this alone ends them in seconds, also without the server
        begun = [partition for partition in self._partitions if partition.flow_run is not None]
        asked: set[SentPartition] = set()
        stopped: list[SentPartition] = []
        deadline = time.monotonic() + END_SECONDS
        while begun and time.monotonic() < deadline:
            states = self._states(begun)
            begun = [one for one in begun if not _is_final(one, states)]
            stopped += [one for one in begun if self._is_stopped(one)]
            begun = [one for one in begun if one not in stopped]
            for partition in begun:
                if not partition.ended and partition not in asked and partition.flow_run in states:
                    asked.add(partition)
                    self._set(partition, Cancelled() if _waits(partition, states) else Cancelling())
            time.sleep(POLL_SECONDS if begun else 0)
        self._end(begun, Crashed(message="The parent run is over, and no host tells of this one."))
        # Of a process that was killed Prefect hears nothing.
        self._end(stopped, Cancelled(message="Stopped with the parent run."))


def phase(partitions: Sequence[SentPartition], work_pool: str, refusals: Sequence[str]) -> str:
    """What a run on a work pool is doing, in words."""
    waiting = [partition for partition in partitions if not partition.ended]
    hosts = {partition.sign.host for partition in waiting if partition.sign is not None}
    if hosts:
        return f"sharding on {len(hosts)} host{'s' if len(hosts) > 1 else ''}"
    if len(waiting) < len(partitions):
        return f"sharding; {len(waiting)} of {len(partitions)} partitions wait for a host"
    refused = "".join(f"; refused by {refusal}" for refusal in refusals)
    return f"waiting for a worker of the work pool {work_pool}{refused}"


def _waits(partition: SentPartition, states: States) -> bool:
    """Whether no worker has taken a partition's run yet."""
    return partition.flow_run in states and states[partition.flow_run].is_scheduled()


def _is_final(partition: SentPartition, states: States) -> bool:
    return partition.flow_run in states and states[partition.flow_run].is_final()


@contextmanager
def on_work_pool(deployment: str, *, partitions: int) -> Iterator[OnWorkPool]:
    """Make sure that there is such a deployment; all runs of it have ended when the block ends.

    Raises:
        UsageError: there is no such deployment, or it takes no partitions.
    """
    found = find_deployment(deployment)
    with ExitStack() as stack:
        yield OnWorkPool(found, partitions, stack)
