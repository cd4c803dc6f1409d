"""The terminal of a command, and texts and figures for people.

Results go to standard output, everything else to standard error. In texts of unknown origin,
characters that would control a terminal are escaped, and so is markup of Prefect's interfaces.
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

# In a notebook, rich would need a further package, and would show each line in its own box.
_PLAIN: dict[str, Any] = {"force_jupyter": False, "force_terminal": False}
in_notebook = Console().is_jupyter
_KIND = _PLAIN if in_notebook else {}
out = Console(highlight=False, **_KIND)
err = Console(stderr=True, highlight=False, **_KIND)
log = logging.getLogger("shardmill")
log.propagate = False  # the root logger may be Prefect's, which would print an error again
handlers: list[logging.Handler] = [logging.NullHandler()]  # the handlers of the command
# Once Prefect is loaded, its loggers pass nothing on to the root logger.
_NAMES = ("prefect", "prefect.flow_runs", "prefect.task_runs")
_LOGGERS = [logging.getLogger(), log, *map(logging.getLogger, _NAMES)]
_UNBOUNDED = 100_000  # width in characters, if the output is no terminal
_JOINERS = "\u200c\u200d"  # these occur within words and emoji
_CONTROL = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
# Markup of Markdown and HTML, and text that readers of Markdown turn into a link, except a URL that
# is the whole text.
_MARKUP = re.compile(
    r"[<>\[\]*`|~&]|((?<=http)(?<!\Ahttp)|(?<=https)(?<!\Ahttps)|(?<=ftp)(?<!\Aftp)):(?=//)"
    r"|(?<=\bwww)\.",
    re.IGNORECASE,
)


def visible(text: str, *, keep: str = "") -> str:
    """Escape control, format and private characters in a text, except those in `keep`."""
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
    """Print a line without wrapping it and without reading markup in it."""
    console.print(Text(visible(text, keep=keep), style=style), soft_wrap=True)


def plain(text: str) -> str:
    r"""Return a text on one line without markup: `<b>` is shown as `\u003cb\u003e`.

    Prefect's older interface reads the cells of a table as Markdown and the newer one does not, so
    no quoting suits both.
    """
    return _MARKUP.sub(lambda found: f"\\u{ord(found[0]):04x}", visible(text))


def escaped(text: str) -> str:
    """Return one line of Markdown that shows a text as it is: `<b>` becomes `&#60;b&#62;`."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", visible(text))


def shortened(name: str, most: int) -> str:
    """Shorten a name to this many characters; keep its end, which distinguishes paths."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun: `1 file`, `2,400 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def count_text(number: float) -> str:
    """Format a number with three digits and a unit: 12.3k, 1.5T."""
    for unit in ("", "k", "M", "G"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}T"


def bytes_text(number: float) -> str:
    """Format bytes in units of 1000, as disks and networks are sold: 64.0 kB, 31.9 MB."""
    return decimal(round(number))


def duration_text(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds: 0:01:30."""
    return str(timedelta(seconds=round(seconds)))


def time_text(seconds: float) -> str:
    """Format the time that something took: 1.37 s, or 0:01:30 from one minute on.

    Seconds have three digits, so that they agree with a rate beside them.
    """
    return duration_text(seconds) if seconds >= 60 else f"{seconds:.3g} s"


def parts_text(report: "RunReport") -> str:
    """Return the number of parts that are done: `60, 49 of them new`; `57 of 60` if some failed."""
    done = report.files_done + report.files_skipped
    of_all = "" if done == report.files else f" of {report.files:,}"
    new = f", {report.files_done:,} of them new" if report.files_skipped else ""
    return f"{done:,}{of_all}{new}"


def print_problem(text: str) -> None:
    """Print a problem; the text may hold names from files of unknown origin."""
    with suppress(OSError):  # such as a full disk; the exit code shows that there was an error
        say(err, f"shardmill: {text}", keep="\n")


def show_facts(rows: Iterable[Sequence[str]], console: Console) -> None:
    """Print rows of a name, figures and perhaps a remark; the names are dim."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    _print(table, rows, console)


def show_table(
    rows: Sequence[Mapping[str, str]], console: Console, *, left: Sequence[str] = ()
) -> None:
    """Print rows, given by column name; the first column and those in `left` are aligned left."""
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
    """Return the settings that decide the bytes of a dataset, without those at their default."""
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
    """Format the value of a setting; a rule is a list of its own settings."""
    if isinstance(value, dict):
        return ", ".join(
            f"{each.replace('_', ' ')} {_fact(each, of)}" for each, of in value.items()
        )
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return size_text(value) if name == "shard_size" else str(value)


def attach_handlers() -> None:
    """Send the log to the command's handlers; call this again after Prefect has set up logging."""
    for logger in _LOGGERS:
        if logger is _LOGGERS[0] or not logger.propagate:  # else the handlers of its parent suffice
            for handler in handlers:
                logger.addHandler(handler)


def detach_handlers() -> None:
    """Remove and close the command's handlers."""
    while handlers:
        handler = handlers.pop()
        for logger in _LOGGERS:
            logger.removeHandler(handler)
        handler.close()
