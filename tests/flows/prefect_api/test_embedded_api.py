"""The start of the embedded API: what it leaves out must not be missed."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import prefect
import pytest
from prefect.settings import (
    PREFECT_API_DATABASE_CONNECTION_URL,
    PREFECT_HOME,
    temporary_settings,
)

from flows.prefect_api import embedded_server
from flows.prefect_api.database import needs_no_migration, note_migrated
from flows.prefect_api.embedded_api import EmbeddedApi
from streaming_ext.errors import StorageError


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "prefect.db"
    url = f"sqlite+aiosqlite:///{file}"
    with temporary_settings({PREFECT_HOME: tmp_path, PREFECT_API_DATABASE_CONNECTION_URL: url}):
        yield file


def _at_revision(file: Path, revision: str) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR)")
        database.execute("DELETE FROM alembic_version")
        database.execute("INSERT INTO alembic_version VALUES (?)", (revision,))


def test_a_database_is_migrated_until_it_is_as_this_prefect_left_it(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_migrated()  # there is none
    assert not needs_no_migration()
    _at_revision(database, "a")
    assert not needs_no_migration()
    note_migrated()
    assert needs_no_migration()
    _at_revision(database, "b")  # another Prefect was here
    assert not needs_no_migration()
    _at_revision(database, "a")
    assert needs_no_migration()
    with monkeypatch.context() as patch:
        patch.setattr(prefect, "__version__", "99")
        assert not needs_no_migration()
    database.unlink()  # and a new one is begun
    assert not needs_no_migration()


def test_a_database_that_is_no_file_is_always_looked_at(tmp_path: Path) -> None:
    url = "postgresql+asyncpg://somebody@127.0.0.1/prefect"
    with temporary_settings({PREFECT_HOME: tmp_path, PREFECT_API_DATABASE_CONNECTION_URL: url}):
        note_migrated()
        assert not needs_no_migration()
    assert not list(tmp_path.iterdir())


def test_prefect_has_all_routes_that_a_run_asks_for() -> None:
    from prefect.server.api.server import API_ROUTERS

    found = {route.path for route in embedded_server.used_routes(API_ROUTERS)}
    assert found == embedded_server.USED


def test_an_api_that_cannot_start_says_why_and_where(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(embedded_server, "_run_server", fail)
    api = EmbeddedApi()
    with pytest.raises(StorageError, match="OSError: the disk is full.*set PREFECT_HOME") as raised:
        api.wait()
    api.stop(recorded=True)
    assert f"its database in {database.parent}, " in str(raised.value)  # as its settings say


def test_a_database_that_is_damaged_is_told(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.write_bytes(b"12:00:00.112 | ERROR | no database" * 200)
    monkeypatch.setenv("PREFECT_HOME", str(database.parent))
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{database}")
    api = EmbeddedApi()
    with pytest.raises(StorageError, match="file is not a database.*set PREFECT_HOME"):
        api.wait()
    api.stop(recorded=True)
