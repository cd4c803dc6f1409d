"""Environments of the servers' own: made once, below the user's cache folder, and kept."""

import fcntl
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path


def python_environment(requirement: str) -> Path:
    """The folder of programs of an environment that holds one package, `name==version`."""

    def install(home: Path) -> None:
        venv.create(home, clear=True, with_pip=True)
        pip = [str(home / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, requirement])

    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return made_once(f"{requirement.replace('==', '-')}-{version}", install) / "bin"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` has filled, in this session or an earlier one."""
    home = user_cache_path("shardmill-tests", ensure_exists=True) / name
    with locked(name):
        if not (home / "ready").exists():
            make(home)
            (home / "ready").touch()
    return home


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process of all tests of this user do something at a time."""
    base = user_cache_path("shardmill-tests", ensure_exists=True)
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(command: list[str], **options: object) -> None:
    """Run a command of an installation; what it says is told where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
