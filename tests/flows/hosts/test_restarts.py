"""The Prefect server, or its database, is killed amid the work, and started again or not."""

from collections.abc import Iterator

import pytest

from tests.command_line import (
    assert_same_dataset,
    ended_as,
    wait_for,
    workers_of,
)
from tests.flows.stops.test_stopping import flow_run
from tests.servers.prefect.postgres import PostgresServer, postgres_server, programs
from tests.servers.prefect.server import PrefectServer
from tests.servers.prefect.worker import cluster


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def database(request) -> Iterator[PostgresServer | None]:
    if request.param == "sqlite":
        yield None
        return
    if programs() is None:
        pytest.skip("there is no PostgreSQL here")
    with postgres_server() as postgres:
        yield postgres


@pytest.fixture
def server(database, tmp_path) -> Iterator[PrefectServer]:
    home = tmp_path / "server"
    home.mkdir()
    settings = {} if database is None else {"PREFECT_API_DATABASE_CONNECTION_URL": database.url}
    made = PrefectServer(home, settings)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_a_restart_in_the_middle_costs_nothing_and_a_server_that_stays_away_little(
    server,
    database,
    embedded,
    dataset,
    tmp_path,
) -> None:
    folder = tmp_path / "hosts"
    folder.mkdir()
    with cluster(server.url, embedded.env, folder, hosts=("one",)) as hosts:
        run = hosts.shard(embedded, tmp_path / "out", partitions=2)
        assert hosts.frozen() == ["one"]
        if database is None:
            server.kill()
            hosts.thaw()  # the first partition ends while no server runs
            server.start()
        else:
            database.kill()
            hosts.thaw()
            database.start()
        state = hosts.wait(run)
        assert state["type"] == "COMPLETED", state
        assert_same_dataset(dataset, tmp_path / "out")
        assert [one["state_type"] for one in hosts.partitions(run)].count("COMPLETED") >= 1

    # PREFECT_CLIENT_MAX_RETRIES: otherwise each request to the dead server takes 14 s.
    command = embedded.where(PREFECT_API_URL=server.url, PREFECT_CLIENT_MAX_RETRIES="0")
    alone = command.start(*command.shard_arguments(tmp_path / "alone"))
    wait_for(lambda: workers_of(alone.pid), alone)
    for worker in workers_of(alone.pid):
        worker.suspend()  # nothing gets done before Prefect knows of the run
    flow_run(server.url, tmp_path / "alone")
    server.kill()
    for worker in workers_of(alone.pid):
        worker.resume()
    stdout, stderr = ended_as(alone)
    assert "Traceback" not in stderr
    assert "the work is done, but Prefect does not show how the run ended" in stderr
    assert "tokens" in stdout
    assert_same_dataset(dataset, tmp_path / "alone")
