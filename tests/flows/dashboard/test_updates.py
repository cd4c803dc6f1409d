"""The dashboard's thread updates rarely, sends only changes, and survives a failing server."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.dashboard import updates as module
from flows.dashboard.updates import Updates
from streaming_ext.base.errors import InternalError, SourceError
from tasks.core.reporting.progress import RunProgress
from tests.command_line import wait_for
from tests.servers.fault_proxy import FaultProxy, Faults
from tests.servers.prefect.server import ask
from tests.tasks.core.reporting.test_report import part_times

KEYS = {"shard-progress", "shard-parts", "shard-hosts"}


class ARun:
    """A flow run that does nothing, on a real server behind a proxy."""

    def __init__(self, api: str, proxy: FaultProxy) -> None:
        self.api = api
        self.proxy = proxy
        with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
            run = client.create_flow_run(
                flow(lambda: None, name="nothing"), name="shard /tmp/a/out"
            )
        self.id = run.id

    def artifacts(self) -> dict[str, dict[str, Any]]:
        """Return the artifacts of the run by key."""
        only = {"id": {"any_": [str(self.id)]}}
        found = ask("POST", f"{self.api}/artifacts/filter", flow_runs=only)
        return {artifact["key"]: artifact for artifact in found}


@pytest.fixture
def run(api_url) -> Iterator[ARun]:
    proxy = FaultProxy(urlsplit(api_url).port or 80)
    try:
        with temporary_settings({PREFECT_API_URL: f"{proxy.url}/api"}):
            yield ARun(api_url, proxy)
    finally:
        proxy.close()


@contextmanager
def kept(
    run: ARun, progress: RunProgress, monkeypatch: pytest.MonkeyPatch, *, first: float
) -> Iterator[None]:
    """Run the dashboard's work in a thread, with short pauses."""
    monkeypatch.setattr(module, "FIRST_SECONDS", first)
    monkeypatch.setattr(module, "UPDATE_SECONDS", 0.05)
    updates = Updates(progress, run.id, logging.getLogger("test_dashboard_updates"))

    def keep() -> None:
        with temporary_settings({PREFECT_API_URL: f"{run.proxy.url}/api"}):
            updates.keep()

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        updates.ended.set()
        thread.join(240)
        assert not thread.is_alive()


def started() -> RunProgress:
    progress = RunProgress()
    progress.begin(parts=2, source_bytes=200)
    progress.end("sharded")  # the clock stands still, so nothing changes by itself
    progress.finish(part_times(0, host="here"), source_bytes=0)
    return progress


def test_a_short_run_asks_for_nothing(run, monkeypatch) -> None:
    sent = run.proxy.bytes_up
    with kept(run, started(), monkeypatch, first=5.0):
        time.sleep(0.2)
    assert run.proxy.bytes_up == sent
    assert run.artifacts() == {}


def test_only_what_is_new_is_sent(run, monkeypatch) -> None:
    progress = started()
    with kept(run, progress, monkeypatch, first=0.0):
        wait_for(lambda: run.artifacts().keys() == KEYS)
        before = run.artifacts()
        time.sleep(0.5)  # many updates without news
        assert run.artifacts() == before  # the times of the last change are part of it
        progress.finish(part_times(1, host="here"), source_bytes=0)
        wait_for(lambda: run.artifacts()["shard-parts"]["description"].endswith("2 done"))
    after = run.artifacts()
    assert {key: artifact["id"] for key, artifact in after.items()} == {
        key: artifact["id"] for key, artifact in before.items()
    }


def test_an_ill_server_is_reported_once_and_made_up_for(run, monkeypatch, caplog) -> None:
    run.proxy.inflict(Faults(answer=(500, "ill")))
    with kept(run, started(), monkeypatch, first=0.0):
        wait_for(lambda: run.proxy.struck > 6)
        assert run.artifacts() == {}
        run.proxy.inflict(Faults())
        wait_for(lambda: run.artifacts().keys() == KEYS)
    printed = [record for record in caplog.records if record.name == "test_dashboard_updates"]
    assert [record.levelname for record in printed] == ["WARNING"]
    assert "The dashboard is behind: PrefectHTTPStatusError" in printed[0].message


def test_what_somebody_deleted_is_made_anew(run, monkeypatch) -> None:
    progress = started()
    with kept(run, progress, monkeypatch, first=0.0):
        wait_for(lambda: run.artifacts().keys() == KEYS)
        with get_client(sync_client=True) as client:
            client.delete_artifact(UUID(run.artifacts()["shard-parts"]["id"]))
        progress.finish(part_times(1, host="here"), source_bytes=0)
        wait_for(
            lambda: run.artifacts().get("shard-parts", {}).get("description", "").endswith("2 done")
        )


@pytest.mark.parametrize(
    ("error", "kept"), [(SourceError("x"), False), (InternalError("x"), True), (OSError(), True)]
)
def test_a_traceback_is_kept_for_what_nobody_expected(error, kept) -> None:
    logger = logging.getLogger("prefect.task_runs")
    try:
        raise error  # noqa: TRY301
    except Exception:  # noqa: BLE001
        cause = sys.exc_info()
    record = logger.makeRecord(logger.name, logging.ERROR, "", 0, "failed", (), cause)
    assert logger.filter(record)
    assert bool(record.exc_info) is kept


FLOWS = (
    "shard-dataset",
    "shard-partition",
    "import-dataset",
    "extend-dataset",
    "export-dataset",
    "copy-dataset",
    "merge-datasets",
    "subset-dataset",
    "annotate-dataset",
)


@pytest.mark.parametrize(
    ("flow_name", "level", "kept"),
    [
        *((name, logging.INFO, False) for name in FLOWS),
        (FLOWS[0], logging.WARNING, True),
        ("mine", logging.INFO, True),
    ],
)
def test_only_of_our_own_flows_tasks_that_went_well_are_left_out(flow_name, level, kept) -> None:
    logger = logging.getLogger("prefect.task_runs")
    extra = {"flow_name": flow_name}
    record = logger.makeRecord(logger.name, level, "", 0, "Finished", (), None, extra=extra)
    assert bool(logger.filter(record)) is kept
