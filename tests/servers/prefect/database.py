"""Prefect's database as its migrations make it: a dozen seconds of work, done once a test run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.servers import shared

_FILE = "prefect.db"


def give_database(home: Path) -> None:
    """Put a migrated SQLite database into a Prefect home that has none."""
    if not (home / _FILE).exists():
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(shared.folder("migrated", _migrate) / _FILE, home)


def _migrate(home: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")
    }
    subprocess.run(
        [sys.executable, "-P", "-m", "prefect", "server", "database", "upgrade", "--yes"],
        env={
            **environment,
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        },
        check=True,
        stdout=subprocess.DEVNULL,
    )
