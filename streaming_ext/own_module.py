"""Starting a module of this project in a process of its own; as a program, it runs one."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any


def own_module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module, as `python -P -m` does, with the packages of this project."""
    return [sys.executable, "-P", str(Path(__file__).resolve()), name, *arguments]


def start_module(name: str, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start such a command; `options` are those of `subprocess.Popen`."""
    return subprocess.Popen(own_module(name, *arguments), **options)


if __name__ == "__main__":  # python -P own_module.py MODULE ARGUMENTS...
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import shardmill  # noqa: F401 - it makes sure of the packages

    del sys.path[0], sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
