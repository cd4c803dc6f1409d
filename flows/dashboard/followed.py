"""How far a run on a cluster is, as its progress artifact on the server tells."""

from dataclasses import replace
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from pydantic import TypeAdapter, ValidationError

from tasks.core.reporting.progress import Snapshot

PROGRESS = "shard-progress"
METADATA = "snapshot"  # of the artifact: the counters behind what it shows
_SNAPSHOT = TypeAdapter(Snapshot)
_NOTHING = Snapshot(phase="starting")


def to_metadata(now: Snapshot) -> dict[str, str]:
    """What a run tells of itself beside its progress artifact."""
    return {METADATA: _SNAPSHOT.dump_json(now).decode()}


class FollowedRun:
    """The counters of a run elsewhere, as they were last told."""

    def __init__(self, run: UUID) -> None:
        self._run = run
        self._now = _NOTHING

    def snapshot(self) -> Snapshot:
        """The counters as they were last told."""
        return self._now

    def update(self, client: SyncPrefectClient, state: State, *, pool: str) -> None:
        """Ask the server how far the run is.

        Args:
            client: of the server.
            state: of the run.
            pool: whose workers may take the run.
        """
        if state.is_scheduled() or state.is_pending():
            waits = f"waiting for a worker of the work pool {pool}"
            self._now = replace(self._now, phase=waits)
            return
        if not state.is_running():
            self._now = replace(self._now, phase=(state.name or "").lower())
            return
        told = self._told(client)
        if told is not None:
            self._now = told
        elif not self._now.parts_total:
            self._now = replace(_NOTHING, phase="a worker has the run; looking at the sources")

    def lose_sight(self, seconds: float) -> None:
        """The server has not answered for so long."""
        self._now = replace(
            self._now,
            phase=f"the Prefect server has not answered for {seconds:.0f} s",
            stopped=True,
        )

    def _told(self, client: SyncPrefectClient) -> Snapshot | None:
        artifacts = client.request(
            "POST",
            "/artifacts/filter",
            json={
                "artifacts": {
                    "flow_run_id": {"any_": [str(self._run)]},
                    "key": {"any_": [PROGRESS]},
                },
                "limit": 1,
            },
        ).json()
        try:
            return _SNAPSHOT.validate_json(artifacts[0]["metadata_"][METADATA])
        except (IndexError, KeyError, TypeError, ValidationError):
            return None  # not yet, or made by another version
