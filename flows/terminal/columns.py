"""Rows in columns, with nothing cut off.

In pipes and logs a line is as long as it needs to be. In a terminal a remark goes on below itself,
and a table that is too wide is shown a row at a time, its columns below each other.
"""

import textwrap
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_GAP = "  "
_LEAST = 20  # columns that a remark gets, however narrow the terminal is


def show_facts(rows: Iterable[Sequence[str]], console: Console, *, indent: str = "") -> None:
    """Rows of a name, figures and last a remark, which may be long; the names are dim.

    A word that is too long, such as a path, is left whole: a terminal wraps it by itself, so that
    it can be copied.
    """
    rows = [tuple(row) for row in rows]
    widths = _widths(row[:-1] for row in rows)
    for row in rows:
        first, *figures = (_padded(cell, width) for cell, width in zip(row, widths, strict=False))
        before = indent + _GAP.join([first, *figures, ""])
        lines = [row[-1]]
        if console.is_terminal:
            room = max(console.width - cell_len(before), _LEAST)
            lines = textwrap.wrap(
                row[-1], room, break_long_words=False, break_on_hyphens=False
            ) or [""]
        for number, line in enumerate(lines):
            text = Text((before if number == 0 else " " * cell_len(before)) + line)
            text.rstrip()
            if number == 0:
                text.stylize("dim", 0, len(indent) + len(first))
            console.print(text, soft_wrap=True)


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    console: Console,
    *,
    left: Sequence[str] = (),
    indent: str = "  ",
) -> None:
    """Rows below the names of their columns.

    Args:
        columns: their names.
        rows: as many cells each.
        console: to print to.
        left: columns of words, beside the first one; all others are figures.
        indent: before each line.
    """
    rows = [tuple(row) for row in rows]
    widths = _widths([columns, *rows])
    width = len(indent) + sum(widths) + len(_GAP) * (len(widths) - 1)
    if console.is_terminal and width > console.width:
        for row in rows:
            console.print(Text(f"{indent}{columns[0]} {row[0]}"), soft_wrap=True)
            named = list(zip(columns, row, strict=True))[1:]
            show_facts((cell for cell in named if cell[1]), console, indent=indent * 2)
        return
    words = {columns[0], *left}
    for number, row in enumerate([columns, *rows]):
        cells = [
            _padded(cell, width, right=name not in words)
            for name, cell, width in zip(columns, row, widths, strict=True)
        ]
        line = Text(indent + _GAP.join(cells), style="dim" if number == 0 else "")
        line.rstrip()
        console.print(line, soft_wrap=True)


def _widths(rows: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]


def _padded(cell: str, width: int, *, right: bool = False) -> str:
    spaces = " " * (width - cell_len(cell))
    return spaces + cell if right else cell + spaces
