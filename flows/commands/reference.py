"""docs/options.md, made from the commands themselves: `python -m flows.commands.reference`."""

import inspect
import sys
from typing import Any

from cyclopts.argument import Argument
from pydantic import ByteSize
from pydantic_core import PydanticUndefined

from streaming_ext.units import size_text

_HEAD = """# Options

Made from the code by `python -m flows.commands.reference > docs/options.md`; a test compares both.
In files of `--config`, names may be written with `_`. Exit codes: 0 all is well; 1 files failed, or
a dataset is not sound; 2 wrong usage; 129 the terminal closed; 130 stopped by Ctrl+C; 143 stopped
by SIGTERM, or cancelled in Prefect. They tell of the work: where nobody reads standard output any
more, as behind `| head`, it goes on, and ends as it would have; where it cannot be written, as on a
full disk, the exit code is 1.
"""
_NOTHING = {None, inspect.Parameter.empty, PydanticUndefined}
_OF_THE_HOST = "--workers"  # as many as it has cores


def reference() -> str:
    """The page, with a table a command."""
    from flows.commands.app import app

    pages = [_HEAD]
    for name in app:
        if name.startswith("-"):
            continue
        command = app[name]
        words = inspect.cleandoc(command.default_command.__doc__ or "").partition("\n\nParam")[0]
        pages.append(f"## {name}\n{words}\n\n| option | default | meaning |\n|---|---|---|")
        rows = [
            _row(each)
            for each in command.assemble_argument_collection(parse_docstring=True)
            if each.show
        ]
        pages.append("\n".join(rows) + "\n")
    return "\n".join(pages)


def _row(argument: Argument) -> str:
    name = argument.name
    if argument.index == 0 or argument.field_info.kind is inspect.Parameter.VAR_POSITIONAL:
        name = name.removeprefix("--").upper()
    default = argument.field_info.default
    shown = "" if argument.name == _OF_THE_HOST else _shown(default, required=argument.required)
    help_text = " ".join((argument.parameter.help or "").split()).replace("|", "\\|")
    choices = argument.get_choices()
    if choices:
        help_text += f" One of {', '.join(choices)}."
    return f"| `{name}` | {shown} | {help_text} |"


def _shown(default: Any, *, required: bool) -> str:
    if required:
        return "needed"
    if default is False or default == () or default in _NOTHING:
        return ""
    return f"`{size_text(default) if isinstance(default, ByteSize) else default}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
