"""docs/reference/options.md, made by `python -m tests.flows.commands.options_page`."""

import inspect
import sys

from cyclopts.argument import Argument

from flows.commands.help import default_text, grouped

_HEAD = """# Options

In files of `--config`, names may be written with `_`. Exit codes: 0 all is well; 1 files failed, or
a dataset is not sound; 2 wrong usage; 129 the terminal closed; 130 stopped by Ctrl+C; 143 stopped
by SIGTERM, or cancelled in Prefect.
"""
_OF_THE_HOST = "--workers"  # the number of its cores


def reference() -> str:
    """The page: of each command its examples, and a table of options for each group."""
    from flows.commands.app import app

    pages = [_HEAD]
    for name in app:
        if name.startswith("-"):
            continue
        command = app[name]
        function = command.default_command
        assert function is not None
        words = command.help
        examples = (command.help_epilogue or "").partition("\n\n")[2]
        pages.append(f"## {name}\n{words}\n\n```text\n{inspect.cleandoc(examples)}\n```\n")
        arguments = command.assemble_argument_collection(parse_docstring=True)
        for heading, group in grouped(function, arguments.filter_by(show=True), lambda a: a.name):
            rows = "\n".join(map(_row, group))
            pages.append(f"{heading}:\n\n| option | default | meaning |\n|---|---|---|\n{rows}\n")
    return "\n".join(pages)


def _row(argument: Argument) -> str:
    name = argument.name if argument.index is None else argument.name.removeprefix("--").upper()
    help_text = " ".join((argument.parameter.help or "").split()).replace("|", "\\|")
    if choices := argument.get_choices():
        help_text += f" One of {', '.join(choices)}."
    return f"| `{name}` | {_default(argument)} | {help_text} |"


def _default(argument: Argument) -> str:
    if argument.required:
        return "needed"
    default = default_text(argument.field_info.default)
    return "" if default is None or argument.name == _OF_THE_HOST else f"`{default}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
