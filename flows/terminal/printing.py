"""The terminal of a command, and texts and figures for people.

Results go to standard output, everything else to standard error. In texts of unknown origin, what
would control a terminal, or is markup to one of Prefect's user interfaces, is escaped.
"""

import logging
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from streaming_ext.base.units import size_text

if TYPE_CHECKING:
    from streaming_ext.format.spec import DatasetSpec
    from tasks.core.reporting.report import RunReport

# In a notebook, rich would need a further package, and show each line in a box of its own.
_PLAIN: dict[str, Any] = {"force_jupyter": False, "force_terminal": False}
in_notebook = Console().is_jupyter
_KIND = _PLAIN if in_notebook else {}
out = Console(highlight=False, **_KIND)
err = Console(stderr=True, highlight=False, **_KIND)
log = logging.getLogger("shardmill")
log.propagate = False  # the root logger may be Prefect's, which would print an error again
handlers: list[logging.Handler] = [logging.NullHandler()]  # of the command
# Once Prefect is loaded, its loggers pass nothing on to the root.
_NAMES = ("prefect", "prefect.flow_runs", "prefect.task_runs")
_LOGGERS = [logging.getLogger(), log, *map(logging.getLogger, _NAMES)]
_UNBOUNDED = 100_000  # columns, if the output is no terminal
_JOINERS = "\u200c\u200d"  # within words and emoji
_CONTROL = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
# Markup of Markdown and HTML, and what readers of Markdown turn into a link; but a text that is a
# URL may stay one.
_MARKUP = re.compile(
    r"[<>\[\]*`|~&]|((?<=http)(?<!\Ahttp)|(?<=https)(?<!\Ahttps)|(?<=ftp)(?<!\Aftp)):(?=//)"
    r"|(?<=\bwww)\.",
    re.IGNORECASE,
)


def visible(text: str, *, keep: str = "") -> str:
    """`text` with control, format and private characters escaped, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in keep
        or character in _JOINERS
        or unicodedata.category(character) not in _CONTROL
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def say(console: Console, text: str, *, style: str = "", keep: str = "") -> None:
    """Print a line unchanged: it is not wrapped, and nothing in it is markup."""
    console.print(Text(visible(text, keep=keep), style=style), soft_wrap=True)


def plain(text: str) -> str:
    r"""`text` on one line without markup: `<b>` is shown as `\u003cb\u003e`.

    Prefect's older interface takes cells of a table for Markdown and the newer one does not, so
    there is no quoting that suits both.
    """
    return _MARKUP.sub(lambda found: f"\\u{ord(found[0]):04x}", visible(text))


def escaped(text: str) -> str:
    """`text` on one line of Markdown that shows it as it is: `<b>` becomes `&#60;b&#62;`."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", visible(text))


def shortened(name: str, most: int) -> str:
    """At most this many letters of a name: its end, which tells paths apart."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def counted(number: int, noun: str) -> str:
    """A number and its noun: `1 file`, `2,400 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def option_name(field: str) -> str:
    """The option that sets a field of a configuration: `--shard-size`."""
    return f"--{field.replace('_', '-')}"


def count_text(number: float) -> str:
    """Three digits and a unit: 12.3k, 1.5T."""
    for unit in ("", "k", "M", "G"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}T"


def bytes_text(number: float) -> str:
    """Bytes in units of 1000, as disks and networks are sold: 64.0 kB, 31.9 MB."""
    return decimal(round(number))


def duration_text(seconds: float) -> str:
    """Hours, minutes and seconds: 0:01:30."""
    return str(timedelta(seconds=round(seconds)))


def time_text(seconds: float) -> str:
    """The time that something took: 1.37 s, or from a minute on 0:01:30.

    Three digits, so that it fits a rate beside it.
    """
    return duration_text(seconds) if seconds >= 60 else f"{seconds:.3g} s"


def parts_text(report: "RunReport") -> str:
    """The parts that are done: `60, 49 of them new`, or `57 of 60` if some failed."""
    done = report.files_done + report.files_skipped
    of_all = "" if done == report.files else f" of {report.files:,}"
    new = f", {report.files_done:,} of them new" if report.files_skipped else ""
    return f"{done:,}{of_all}{new}"


def print_problem(text: str) -> None:
    """Print a problem; the text may hold names from files of unknown origin."""
    with suppress(OSError):  # of a full disk: the exit code says it
        say(err, f"shardmill: {text}", keep="\n")


def show_facts(rows: Iterable[Sequence[str]], console: Console) -> None:
    """Rows of a name, figures and perhaps a remark; the names are dim."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    _print(table, rows, console)


def show_table(
    rows: Sequence[Mapping[str, str]], console: Console, *, left: Sequence[str] = ()
) -> None:
    """Rows by the names of their columns: words in the first and in `left`, figures in others."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for number, name in enumerate(rows[0]):
        words = number == 0 or name in left
        table.add_column(name, justify="left" if words else "right", overflow="fold")
    _print(table, (list(row.values()) for row in rows), console)


def _print(table: Table, rows: Iterable[Sequence[str]], console: Console) -> None:
    for row in rows:
        while len(table.columns) < len(row):
            table.add_column(overflow="fold")
        table.add_row(*(Text(visible(cell)) for cell in row))
    options = console.options
    if not console.is_terminal:
        options = options.update_width(_UNBOUNDED)
    for line in console.render_lines(table, options, pad=False):
        text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
        text.rstrip()
        console.print(text, soft_wrap=True)


def spec_facts(spec: "DatasetSpec") -> list[tuple[str, str]]:
    """The settings that decide the bytes of a dataset, without defaults."""
    tokenizer, others = spec.tokenizer, spec.model_dump(exclude_defaults=True)
    del others["tokenizer"]
    marks = {"end of text": f"{tokenizer.eot_token} is id {tokenizer.eot_id}"}
    if tokenizer.bos_token is not None:
        marks["beginning"] = f"{tokenizer.bos_token} is id {tokenizer.bos_id}"
    return [
        ("tokenizer", f"{tokenizer.name} ({tokenizer.kind}), {tokenizer.vocab_size:,} ids"),
        ("fingerprint", tokenizer.fingerprint),
        *marks.items(),
        *((name.replace("_", " "), _fact(name, value)) for name, value in others.items()),
    ]


def _fact(name: str, value: Any) -> str:
    """The value of a setting: a rule as its own settings, one after another."""
    if isinstance(value, dict):
        return ", ".join(
            f"{each.replace('_', ' ')} {_fact(each, of)}" for each, of in value.items()
        )
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return size_text(value) if name == "shard_size" else str(value)


def attach_handlers() -> None:
    """Send the log to the command's handlers; again after Prefect has set up logging."""
    for logger in _LOGGERS:
        if logger is _LOGGERS[0] or not logger.propagate:  # otherwise its parent has them
            for handler in handlers:
                logger.addHandler(handler)


def detach_handlers() -> None:
    """Close the command's handlers."""
    while handlers:
        handler = handlers.pop()
        for logger in _LOGGERS:
            logger.removeHandler(handler)
        handler.close()
