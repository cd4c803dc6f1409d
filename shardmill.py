"""The commands of Shardmill as functions, and the program `shardmill`.

Imported, it makes `flows` and `tasks` the packages of this project. Both are common names: a
script's own `tasks.py`, or what lies in `PYTHONPATH`, would come first.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.functions import (
        annotate,
        bench,
        check_tokenizer,
        copy,
        export,
        extend,
        import_,
        merge,
        plan,
        shard,
        subset,
    )
    from flows.results import Dataset, Export

__all__ = [
    "Dataset",
    "Export",
    "annotate",
    "bench",
    "check_tokenizer",
    "copy",
    "export",
    "extend",
    "import_",
    "merge",
    "plan",
    "shard",
    "subset",
]

_HOME = Path(__file__).resolve().parent


def _import_own_packages() -> None:
    """Import the packages beside this file before anything else looks for these names.

    Raises:
        ImportError: one of the names is taken already.
    """
    sys.path.insert(0, str(_HOME))
    try:
        for name in ("flows", "tasks", "streaming_ext"):
            found = import_module(name).__file__
            if found is None or not Path(found).resolve().is_relative_to(_HOME / name):
                raise ImportError(
                    f"`{name}` is imported from {found} already, and Shardmill has a package of "
                    "this name. Import shardmill before it."
                )
    finally:
        sys.path.remove(str(_HOME))


_import_own_packages()


def __getattr__(name: str) -> Any:
    """Import the functions when they are first used: the program starts without them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("flows.functions"), name)


def __dir__() -> list[str]:
    return __all__


def main() -> None:
    """Run the command line."""
    from flows.cli import main as command

    command()


if __name__ == "__main__":
    main()
