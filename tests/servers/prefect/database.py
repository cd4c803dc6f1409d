"""Prefect's database after its migrations, which take about twelve seconds; made once and kept."""

import os
import shutil
from importlib.metadata import version
from pathlib import Path

from tests.servers.environments import made_once
from tests.warm import start_module

_FILE = "prefect.db"


def give_database(home: Path) -> None:
    """Put a migrated SQLite database into a Prefect home that has none."""
    if not (home / _FILE).exists():
        home.mkdir(parents=True, exist_ok=True)
        made = made_once(f"prefect-database-{version('prefect')}", _migrate)
        shutil.copy(made / _FILE, home)


def _migrate(home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)  # left by an earlier one that was broken off
    home.mkdir()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")
    }
    command = start_module(
        "prefect",
        ["server", "database", "upgrade", "--yes"],
        {
            **environment,
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        },
    )
    with command:
        stdout, stderr = command.communicate()
    assert command.returncode == 0, stdout + stderr
