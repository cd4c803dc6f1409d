"""Environments for the servers, made once below the user's cache folder and kept, and environments
that lack packages.
"""

import fcntl
import shutil
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
    """Return the folder of programs of an environment that holds one package, `name==version`."""

    def install(home: Path) -> None:
        venv.create(home, clear=True, with_pip=True)
        pip = [str(home / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, requirement])

    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return made_once(f"{requirement.replace('==', '-')}-{version}", install) / "bin"


def built_wheel(folder: Path) -> Path:
    """Return a wheel that `make wheel` builds in a copy of the repository, beside the archive."""
    made = {"build", "dist", "demo-output", "venv"}  # made by tools, at the root
    for path in ROOT.iterdir():
        if path.is_dir() and path.name not in made and path.name[0] != ".":
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(path, folder / path.name, ignore=ignored)
        elif path.is_file():
            shutil.copyfile(path, folder / path.name)
    ready = folder / "ready"
    ready.touch()
    programs = Path(sys.executable).parent
    run(["make", "--silent", "wheel", f"BIN={programs}", f"READY={ready}"], cwd=folder)
    (wheel,) = folder.glob("dist/*.whl")
    return wheel


def environment_with(home: Path, wheel: Path, *extras: str) -> Path:
    """Make an environment with a wheel of shardmill, its dependencies and those of some extras, and
    return its folder of programs. Dependencies are links to installed ones: nothing is downloaded.
    """
    venv.create(home, with_pip=False)
    (packages,) = home.glob("lib/python*/site-packages")
    for name in _needed("shardmill", frozenset(extras)) - {"shardmill"}:
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {".."}:
            target = Path(str(installed.locate_file(top)))
            if target.exists() and not (packages / top).exists():
                (packages / top).symlink_to(target)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin/python"), "install"]
    run([*pip, "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", str(wheel)])
    return home / "bin"


def _needed(name: str, extras: frozenset[str]) -> set[str]:
    """Return the installed distributions that one needs with some extras, and that one itself."""
    found: set[tuple[str, frozenset[str]]] = set()
    left = [(name, extras)]
    while left:
        one = left.pop()
        try:
            lines = distribution(one[0]).requires or ()
        except PackageNotFoundError:
            continue  # only needed on another system
        if one in found:
            continue
        found.add(one)
        for requirement in map(Requirement, lines):
            marker, chosen = requirement.marker, one[1] or {""}
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in chosen):
                left.append((requirement.name, frozenset(requirement.extras)))
    return {name for name, _ in found}


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` has filled, in this session or an earlier one."""
    home = user_cache_path("shardmill-tests", ensure_exists=True) / name
    with locked(name):
        if not (home / "ready").exists():
            make(home)
            (home / "ready").touch()
    return home


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Let only one process of all of this user's tests do something at a time."""
    base = user_cache_path("shardmill-tests", ensure_exists=True)
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(command: list[str], **options: object) -> None:
    """Run a command of an installation; if it fails, report its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
