"""Whether the embedded API's database is the one that this version of Prefect made or migrated.

Prefect looks for migrations at each start, which loads some hundred of them to find that none is to
be done: half a second.
"""

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import prefect
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, PREFECT_HOME

_NOTE = "shardmill-migrated.json"
_SQLITE = "sqlite+aiosqlite:///"


def home() -> Path:
    """Prefect's folder, as its settings say."""
    return Path(PREFECT_HOME.value()).expanduser()


def make_home() -> None:
    """Make Prefect's folder with those above it, which Prefect takes for granted."""
    home().mkdir(mode=0o700, parents=True, exist_ok=True)


def needs_no_migration() -> bool:
    """Whether the database is as this version of Prefect left it."""
    found = _state()
    if found is None:
        return False
    with suppress(OSError, ValueError):
        return bool(json.loads(_note().read_text()) == found)
    return False


def note_migrated() -> None:
    """Remember that the database is as this version of Prefect wants it."""
    found = _state()
    if found is not None and not needs_no_migration():
        with suppress(OSError):  # the next start takes as long as this one
            _note().write_text(json.dumps(found))


def _note() -> Path:
    return home() / _NOTE


def _state() -> dict[str, str] | None:
    """Version of Prefect and revision of the database; None where it is no file on this host."""
    url = str(PREFECT_API_DATABASE_CONNECTION_URL.value())
    file = Path(url.removeprefix(_SQLITE))
    if not url.startswith(_SQLITE) or not file.is_file():
        return None
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database,
    ):
        rows = database.execute("SELECT version_num FROM alembic_version").fetchall()
        return {"prefect": prefect.__version__, "file": str(file), "revision": str(rows)}
    return None
