"""Help texts, which list options in groups with headings."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, TypeVar, get_type_hints

from cyclopts import App
from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel
from cyclopts.help.specs import DescriptionRenderer
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from streaming_ext.base.units import size_text

T = TypeVar("T")

# The name of a value, by the name of the option or by cyclopts' name of its type.
_VALUES = {
    "--config": "FILE",
    "--exclude": "FILE",
    "--log-file": "FILE",
    "--output": "PATH",
    "--scratch": "FOLDER",
    "--tokenizer": "NAME",
    "--where": "CONDITION",
    "BYTESIZE": "SIZE",
    "CHOICE": "NAME",
    "INT": "NUMBER",
    "INT|STR": "TEXT",
    "FLOAT": "NUMBER",
    "PATH": "FILE",
    "STR": "TEXT",
}
_ORDER = (
    "Input",
    "Filters",
    "Output",
    "Machines",
    "Sample",
    "Options",
    "Mixture",
    "Order",
    "Execution",
    "Global options",
)
_NO_DEFAULT = (None, False, (), inspect.Parameter.empty)


def default_text(value: Any) -> str | None:
    """Return a default as help shows it; None if there is nothing to show."""
    if any(value is nothing for nothing in _NO_DEFAULT):
        return None
    from pydantic import ByteSize

    if isinstance(value, ByteSize):
        return size_text(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def grouped(
    command: Callable[..., Any], options: Iterable[T], name: Callable[[T], str]
) -> Iterator[tuple[str, Iterator[T]]]:
    """Group the options of a command by the headings of the classes that declare them."""
    classes = [hint for hint in get_type_hints(command).values() if hasattr(hint, "heading")]
    others = "Execution" if len(classes) > 1 else "Options"  # of options that the command declares
    headings: dict[str, str] = {}
    for base in (base for each in classes for base in reversed(inspect.getmro(each))):
        for field in inspect.get_annotations(base):
            # The first class that declares an option counts; a later one only describes it again.
            headings.setdefault(field, getattr(base, "heading", others))

    def heading(option: T) -> str:
        field = name(option).removeprefix("--").replace("-", "_").lower()
        return headings.get(field, others)

    return groupby(sorted(options, key=lambda option: _ORDER.index(heading(option))), heading)


class GroupedHelp(DefaultFormatter):
    """A formatter that shows the options of a command, or the list of commands.

    Args:
        app: the app that has the command.
        name: the name of the command; None for the list of commands.
    """

    def __init__(self, app: App, name: str | None = None) -> None:
        super().__init__()
        self._app, self._name = app, name

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print the groups; cyclopts calls this."""
        command = self._app[self._name].default_command if self._name else None
        groups: Iterable[tuple[Any, Iterable[HelpEntry]]] = [(panel.title, panel.entries)]
        if command is not None:
            groups = grouped(command, panel.entries, _name)
        describe = DescriptionRenderer()
        for title, entries in groups:
            table = Table.grid(padding=(0, 2))
            table.add_column(no_wrap=True, style="cyan")
            for entry in entries:
                table.add_row(Text(f"  {_label(entry)}"), describe(entry))
            console.print(Text(f"{title}:", style="bold"), table, "", sep="\n")


def _name(entry: HelpEntry) -> str:
    return (*entry.positive_names, *entry.display_labels)[0]


def _label(entry: HelpEntry) -> str:
    """Return the name of an argument, command or option, with the name of an option's value."""
    if entry.positional_label:
        return entry.positional_label
    names = ", ".join((*entry.names, *entry.shorts))
    if entry.metavar is None:
        return names
    kind = entry.metavar.removesuffix("...")
    value = _VALUES.get(entry.positive_names[0], _VALUES.get(kind, kind))
    return f"{names} {value}{entry.metavar[len(kind) :]}"
