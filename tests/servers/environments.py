"""Environments of the servers' own, made once, below the user's cache folder, and kept; and some
that lack packages.
"""

import fcntl
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from platformdirs import user_cache_path

ROOT = Path(__file__).parents[2]


def python_environment(requirement: str) -> Path:
    """The folder of programs of an environment that holds one package, `name==version`."""

    def install(home: Path) -> None:
        venv.create(home, clear=True, with_pip=True)
        pip = [str(home / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, requirement])

    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return made_once(f"{requirement.replace('==', '-')}-{version}", install) / "bin"


def environment_with(home: Path, *extras: str) -> Path:
    """The folder of programs of an environment with shardmill, its dependencies and those of some
    extras: links to what is installed here, so nothing is downloaded.
    """
    venv.create(home, with_pip=False)
    (packages,) = home.glob("lib/python*/site-packages")
    for name in _needed("shardmill", frozenset(extras)):
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {".."}:
            target = Path(str(installed.locate_file(top)))
            if target.exists() and not (packages / top).exists():
                (packages / top).symlink_to(target)
    for link in packages.glob("__editable__*"):  # it shows the packages beside our own too
        link.unlink()
    (packages / "shardmill.pth").write_text(f"{ROOT}\n")
    (home / "bin/shardmill").write_text(
        f"#!{home}/bin/python\nfrom shardmill import main\n\nmain()\n"
    )
    (home / "bin/shardmill").chmod(0o755)
    return home / "bin"


def _needed(name: str, extras: frozenset[str]) -> set[str]:
    """The installed distributions that one needs with some extras, and the one itself."""
    found: set[tuple[str, frozenset[str]]] = set()
    left = [(name, extras)]
    while left:
        one = left.pop()
        try:
            lines = distribution(one[0]).requires or ()
        except PackageNotFoundError:
            continue  # for another system
        if one in found:
            continue
        found.add(one)
        for requirement in map(Requirement, lines):
            marker, chosen = requirement.marker, one[1] or {""}
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in chosen):
                left.append((requirement.name, frozenset(requirement.extras)))
    return {name for name, _ in found}


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
