"""The executor `prefect://FLOW/DEPLOYMENT`: guests are runs of a deployment of `shard-partition`.

Any host whose worker polls the deployment's work pool takes one after another, so hosts may come
and go. Prefect starts, shows and cancels the runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from flows.executors.on_hosts import OnHosts
from flows.prefect_api.connection import refuses
from streaming_ext.base.errors import UsageError, one_line
from tasks.prefect_tasks import one_attempt

_PAGE = 100  # runs a request


class WorkPool(OnHosts):
    """Starts guests as runs of a deployment.

    Args:
        client: of the server.
        deployment: FLOW/DEPLOYMENT.
        partitions: send at most this many.

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
                f"{self._option}: the Prefect server at {client.api_url} has no such deployment. "
                "Set PREFECT_API_URL, and make it with `prefect deploy` (docs/operate/clusters.md)."
            ) from error
        super().__init__(f"the work pool {found.work_pool_name or '?'}", partitions)

    def start(self, output: str, run: str, partition: int, attempt: int) -> str | None:
        """Start a run for an attempt; called again, it is the same run.

        Raises:
            UsageError: the deployment is gone, or cannot take a partition.
        """
        parameters = {"output": output, "run": run, "partition": partition, "attempt": attempt}
        try:
            created = run_deployment(
                self._deployment,
                parameters=parameters,
                timeout=0,
                idempotency_key=f"{run}-{partition}-{attempt}",
            )
        except ObjectNotFound as error:
            raise UsageError(
                f"{self._option}: the deployment was deleted. Make it with `prefect deploy` "
                "(docs/operate/clusters.md) and run the same command again to resume."
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
        """The states of runs; none if the server does not answer."""
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
    """Find a deployment; all runs of it have ended when the block ends.

    Raises:
        UsageError: there is no such deployment.
    """
    with (
        get_client(sync_client=True) as client,
        WorkPool(client, deployment, partitions) as executor,
    ):
        yield executor
