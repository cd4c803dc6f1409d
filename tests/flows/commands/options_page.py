"""docs/reference/options.md, made by `python -m tests.flows.commands.options_page`."""

import inspect
import re
import sys

from cyclopts.annotations import get_hint_name
from cyclopts.argument import Argument

from flows.commands.help import default_text, grouped

_HEAD = """# Options

In files of `--config`, names may be written with `_`. Exit codes: 0 all is well; 1 files failed, or
a dataset is not sound; 2 wrong usage; 129 the terminal closed; 130 stopped by Ctrl+C; 143 stopped
by SIGTERM, or cancelled in Prefect.
"""
_OF_THE_HOST = "--workers"  # its default is the number of the machine's cores
_TYPES = {
    "bool": "flag",
    "ByteSize": "size",
    "float": "number",
    "int": "whole number",
    "int|str": "text",
    "Path": "path",
    "str": "text",
    "str|Path": "path",
}


def reference() -> str:
    """Return the page: the examples of each command, and the options of each group."""
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
            items = "\n".join(_item(name, argument) for argument in group)
            pages.append(f"{heading}:\n\n{items}\n")
    return "\n".join(pages)


def _item(command: str, argument: Argument) -> str:
    bare = argument.name.removeprefix("--")
    name = argument.name if argument.index is None else bare.upper()
    meaning = " ".join((argument.parameter.help or "").split())
    return f"- `{name}`{{ #{command}-{bare} }} ({_type(argument)}{_default(argument)}): {meaning}"


def _type(argument: Argument) -> str:
    if choices := argument.get_choices():
        return "one of " + ", ".join(f"`{choice}`" for choice in choices)
    kind = get_hint_name(argument.hint).removesuffix("|None")
    if several := re.match(r"tuple\[(\w+)", kind):
        return f"{_TYPES[several[1]]}, several"
    return _TYPES[kind]


def _default(argument: Argument) -> str:
    if argument.required:
        return ", needed"
    default = default_text(argument.field_info.default)
    return "" if default is None or argument.name == _OF_THE_HOST else f", default `{default}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
