"""The program `shardmill`, and the launcher of its child processes, with this project's packages.

`tasks` and `flows` are common names: with `PYTHONPATH=.` a user's own would come first. So both
import the packages beside this file before anything else looks for these names.
"""

import runpy
import sys
from importlib import import_module
from pathlib import Path


def _import_own_packages() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    for name in ("flows", "tasks", "streaming_ext"):
        import_module(name)
    del sys.path[0]


def main() -> None:
    """Run the command line."""
    _import_own_packages()
    from flows.cli import main as command

    command()


if __name__ == "__main__":  # python -P shardmill.py MODULE ARGUMENTS...
    _import_own_packages()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
