"""Starting a module of this project in a process of its own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

_LAUNCHER = Path(__file__).resolve().parents[1] / "shardmill.py"


def own_module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module, as `python -P -m` does, with the packages of this project."""
    return [sys.executable, "-P", str(_LAUNCHER), name, *arguments]


def start_module(name: str, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start such a command; `options` are those of `subprocess.Popen`."""
    return subprocess.Popen(own_module(name, *arguments), **options)
