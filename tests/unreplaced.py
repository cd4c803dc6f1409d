"""A program: a command in this process; prints which functions of other packages it replaced."""

import json
import sys
from types import FunctionType

PACKAGES = ("prefect", "fastapi", "httpx", "asyncio", "importlib", "builtins", "uvicorn")
Functions = dict[tuple[str, str], object]


def functions() -> Functions:
    """Functions and classes of modules that are loaded, and functions of these classes."""
    found: Functions = {}
    for module, holder in list(sys.modules.items()):
        if module.split(".")[0] not in PACKAGES:
            continue
        for name, value in list(vars(holder).items()):
            if isinstance(value, type):
                found[module, name] = value
                found |= {(module, f"{name}.{method}"): each for method, each in vars(value).items()
                          if isinstance(each, FunctionType)}  # fmt: skip
            elif callable(value):
                found[module, name] = value
    return found


def main() -> None:
    """Run the command line of the arguments."""
    import uvicorn  # noqa: F401

    before = functions()
    from flows.cli import main as command

    try:
        command(sys.argv[1:])
    except SystemExit as end:
        code = int(end.code or 0)
    after = functions()
    replaced = [f"{module}.{name}" for (module, name), value in before.items()
                if after.get((module, name)) is not value]  # fmt: skip
    print(json.dumps({"looked_at": len(before), "replaced": replaced}))
    sys.exit(code)


if __name__ == "__main__":
    main()
