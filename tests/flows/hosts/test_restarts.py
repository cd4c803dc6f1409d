"""The Prefect server killed and started again, and its database, while hosts are at work."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import CommandLine, assert_same_dataset
from tests.servers.prefect.postgres import PostgresServer, postgres_server, programs
from tests.servers.prefect.server import PrefectServer
from tests.servers.prefect.worker import Cluster, cluster


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def database(request: pytest.FixtureRequest) -> Iterator[PostgresServer | None]:
    if request.param == "sqlite":
        yield None
        return
    if programs() is None:
        pytest.skip("there is no PostgreSQL here")
    with postgres_server() as postgres:
        yield postgres


@pytest.fixture
def server(database: PostgresServer | None, tmp_path: Path) -> Iterator[PrefectServer]:
    home = tmp_path / "server"
    home.mkdir()
    settings = {} if database is None else {"PREFECT_API_DATABASE_CONNECTION_URL": database.url}
    made = PrefectServer(home, settings)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def hosts(server: PrefectServer, embedded: CommandLine, tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "hosts"
    folder.mkdir()
    with cluster(server.url, embedded.env, folder, hosts=("one",)) as made:
        yield made


def test_a_restart_in_the_middle_costs_nothing(
    hosts: Cluster,
    server: PrefectServer,
    database: PostgresServer | None,
    embedded: CommandLine,
    dataset: Path,
    tmp_path: Path,
) -> None:
    run = hosts.shard(embedded, tmp_path / "out", partitions=2)
    assert hosts.frozen() == ["one"]
    if database is None:
        server.kill()
        hosts.thaw()  # the first partition ends while there is no server
        server.start()
    else:
        database.kill()
        hosts.thaw()
        database.start()
    state = hosts.wait(run)
    assert state["type"] == "COMPLETED", state
    assert_same_dataset(dataset, tmp_path / "out")
    assert [one["state_type"] for one in hosts.partitions(run)].count("COMPLETED") >= 1
