"""Help texts: a box for each group of options, each option once, with a name for its value."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, TypeVar, get_type_hints

from cyclopts import App
from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel
from rich.console import Console, ConsoleOptions

from streaming_ext.base.units import size_text

T = TypeVar("T")

# What stands for a value: by the option's name, else by what cyclopts calls its type.
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
    "Printing",
)
_NO_DEFAULT = (None, False, (), inspect.Parameter.empty)


def default_text(value: Any) -> str | None:
    """A default as help shows it; None where there is nothing to show."""
    if any(value is nothing for nothing in _NO_DEFAULT):
        return None
    from pydantic import ByteSize

    if isinstance(value, ByteSize):
        return size_text(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def grouped(
    command: Callable[..., Any], options: Iterable[T], name: Callable[[T], str]
) -> Iterator[tuple[str, Iterator[T]]]:
    """Options of a command below the headings of the classes that declare them."""
    classes = [hint for hint in get_type_hints(command).values() if hasattr(hint, "heading")]
    others = "Execution" if len(classes) > 1 else "Options"  # what the command itself declares

    def heading(option: T) -> str:
        field = name(option).removeprefix("--").replace("-", "_").lower()
        # The first class that declares it: a later one only says it in other words.
        owners: Iterator[Any] = (
            base
            for each in classes
            for base in reversed(inspect.getmro(each))
            if field in inspect.get_annotations(base)
        )
        return next((str(owner.heading) for owner in owners), others)

    return groupby(sorted(options, key=lambda option: _ORDER.index(heading(option))), heading)


class GroupedHelp(DefaultFormatter):
    """Shows the options of a command in a box for each group.

    Args:
        app: of which it is a command.
        name: of the command.
    """

    def __init__(self, app: App, name: str) -> None:
        super().__init__()
        self._app, self._name = app, name

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print the boxes, as cyclopts calls it."""
        command = self._app[self._name].default_command
        assert command is not None  # noqa: S101  (a command is a function)
        for title, entries in grouped(command, panel.entries, _name):
            shown = [_shown(entry) for entry in entries]
            super().__call__(console, options, panel.copy(title=title, entries=shown))


def _name(entry: HelpEntry) -> str:
    return (*entry.positive_names, *entry.display_labels)[0]


def _shown(entry: HelpEntry) -> HelpEntry:
    """An argument by its label alone, an option with the name of its value."""
    if entry.positional_label:
        return entry.copy(positive_names=(), positive_shorts=())
    if entry.metavar is None:
        return entry
    kind = entry.metavar.removesuffix("...")
    name = _VALUES.get(entry.positive_names[0], _VALUES.get(kind, kind))
    return entry.copy(metavar=name + entry.metavar[len(kind) :])
