"""Starting a module of this project in a process of its own."""

import sys
from pathlib import Path

_LAUNCHER = Path(__file__).resolve().parents[1] / "shardmill.py"


def own_module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module, as `python -P -m` does, with the packages of this project."""
    return [sys.executable, "-P", str(_LAUNCHER), name, *arguments]
