"""Start a module of this project in its own process; run as a program, this runs the module."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any


def own_module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module like `python -P -m`, with the project's packages."""
    return [sys.executable, "-P", str(Path(__file__).resolve()), name, *arguments]


def start_module(name: str, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start the command of `own_module`; `options` go to `subprocess.Popen`."""
    return subprocess.Popen(own_module(name, *arguments), **options)


if __name__ == "__main__":  # python -P own_module.py MODULE ARGUMENTS...
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import shardmill  # noqa: F401 - it sets up the packages of this project

    del sys.path[0], sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
