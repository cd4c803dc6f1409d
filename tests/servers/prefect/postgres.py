"""A real PostgreSQL on loopback, with the programs installed on this machine.

PostgreSQL refuses to run as root: if the tests do, it runs as `nobody` in its own folder.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.prefect.server import free_port

_NOBODY = 65534
_SHORT = Path("/tmp")  # noqa: S108  mkdtemp makes a folder of its own there


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs; None if there are none.

    The wheels that carry a PostgreSQL leave out `pg_trgm`, which Prefect's database needs.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    return None if on_path is None else Path(on_path).parent


class PostgresServer:
    """A server with an empty database `prefect`; it may be killed and started again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._data = root / "data"
        found = programs()
        assert found is not None, "there is no PostgreSQL here"
        self._programs = found
        self._user = _NOBODY if os.geteuid() == 0 else None
        self.port = free_port()
        if self._user is not None:
            os.chown(root, self._user, self._user)
        self._run("initdb", "-D", self._data, "-U", "prefect", "-A", "trust", "--no-sync")
        self.start()
        self._run("createdb", "-h", "127.0.0.1", "-p", self.port, "-U", "prefect", "prefect")

    @property
    def url(self) -> str:
        """The URL of the database, for Prefect's settings."""
        return f"postgresql+asyncpg://prefect@127.0.0.1:{self.port}/prefect"

    def _run(self, program: str, *arguments: object) -> None:
        ended = subprocess.run(
            [str(self._programs / program), *map(str, arguments)],
            cwd=self._root,
            user=self._user,
            group=self._user,
            capture_output=True,
            text=True,
            check=False,
        )
        log = self._root / "log"
        assert ended.returncode == 0, (
            ended.stdout + ended.stderr + (log.read_text() if log.exists() else "")
        )

    def start(self) -> None:
        """Start the server, recover what a kill left, and wait until it answers."""
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -k {self._root}"
        # The output goes to a file: the reader of an inherited pipe would wait for its end.
        self._run(
            *("pg_ctl", "start", "-D", self._data, "-w", "-t", "60"),
            *("-l", self._root / "log", "-o", options),
        )

    def kill(self) -> None:
        """Stop the server in the quickest way: what is in memory is lost, as with kill -9."""
        self._run("pg_ctl", "stop", "-D", self._data, "-m", "immediate")


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run PostgreSQL in a temporary folder."""
    # Not in the tests' folder for temporary files: other users cannot reach that, and the path of a
    # socket must be short.
    with tempfile.TemporaryDirectory(prefix="shardmill-postgres-", dir=_SHORT) as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder))
        try:
            yield server
        finally:
            server.kill()
