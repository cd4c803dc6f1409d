"""The executor `dask://HOST:PORT`: guests are tasks of a running Dask cluster.

A Dask worker with N threads runs N guests at a time, each with one worker process.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from distributed import Client, Future, get_worker
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings
from prefect.states import Cancelled, Crashed

from flows.executors.on_hosts import REFUSED, GuestParameters, OnHosts
from streaming_ext.base.errors import UsageError, one_line

START_SECONDS = 15.0
PARTITIONS_PER_THREAD = 4  # so that late workers find one, and a dead worker loses little


class DaskCluster(OnHosts):
    """The executor that starts guests as tasks of a Dask cluster.

    Args:
        client: the client of the cluster's scheduler.
    """

    def __init__(self, client: "Client") -> None:
        threads = sum(client.nthreads().values())  # type: ignore[no-untyped-call]
        super().__init__("the Dask cluster", PARTITIONS_PER_THREAD * threads)
        self._client = client
        self._futures: dict[str, Future[Any]] = {}
        self._refused: set[str] = set()  # addresses of workers

    def start(self, name: str, parameters: GuestParameters) -> str | None:
        """Submit an attempt, if possible to workers that have not refused any."""
        workers = set(self._client.nthreads()) - self._refused  # type: ignore[no-untyped-call]
        self._futures[name] = self._client.submit(
            work_as_guest,
            get_current_settings().api.url,
            parameters,
            key=name,
            workers=sorted(workers) if self._refused and workers else None,
            pure=False,
        )
        return name

    def states(self, guests: Sequence[str]) -> dict[str, State]:
        """Return the states of ended guests; for the others, their signs say more than Dask."""
        states: dict[str, State] = {}
        for guest in guests:
            if (future := self._futures.get(guest)) is None:
                states[guest] = Cancelled()
            elif future.status == "finished":
                states[guest], worker = future.result()
                if states[guest].name == REFUSED:
                    self._refused.add(worker)
            elif future.status == "error":
                error = future.exception()  # type: ignore[no-untyped-call]
                states[guest] = Crashed(message=f"{type(error).__name__}: {one_line(error)}")
            elif future.status != "pending":
                states[guest] = Crashed(message=f"Dask calls it {future.status}")
        return states

    def end(self, guests: Sequence[str], state: State) -> None:
        """Cancel waiting guests; working guests end when they see the parent's sign."""
        futures = [self._futures.pop(guest) for guest in guests if guest in self._futures]
        self._client.cancel(futures, force=True)  # type: ignore[no-untyped-call]


def work_as_guest(api: str | None, parameters: GuestParameters) -> tuple[State, str]:
    """Run `shard-partition` in a thread of a Dask worker; return its state and the worker."""
    from flows.shard_partition import shard_partition

    with temporary_settings({PREFECT_API_URL: api}):
        state = shard_partition(**parameters, workers=1, return_state=True)
    return state, str(get_worker().address)


@contextmanager
def on_dask(address: str) -> Iterator[DaskCluster]:
    """Connect to a cluster; nothing of the run is left there when the block ends.

    Args:
        address: the address of the scheduler, `tcp://HOST:PORT` or `tls://HOST:PORT`.

    Raises:
        UsageError: no scheduler with a worker answers at the address.
    """
    try:
        client = Client(address, timeout=START_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
        client.wait_for_workers(1, timeout=START_SECONDS)
    except (OSError, TimeoutError) as error:
        raise UsageError(
            f"No Dask cluster with a worker answers at {address} within {START_SECONDS:.0f} s: "
            f"{error}."
        ) from error
    with client, DaskCluster(client) as executor:
        yield executor
