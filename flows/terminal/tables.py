"""Tables: in a terminal they wrap; in pipes and logs a line is as long as it needs to be."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.terminal.printing import visible
from streaming_ext.base.units import size_text
from streaming_ext.format.spec import DatasetSpec

_UNBOUNDED = 100_000  # columns, if the output is no terminal


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


def spec_facts(spec: DatasetSpec) -> list[tuple[str, str]]:
    """The tokenizer, samples, shards and holdout of a dataset."""
    tokenizer = spec.tokenizer
    by = "" if spec.imported is None else ", by the hash of their ids"
    holdout = f"{spec.holdout_fraction:.4%} of the documents{by}, seed {spec.holdout_seed}"
    return [
        ("tokenizer", f"{tokenizer.name} ({tokenizer.kind}), {tokenizer.vocab_size:,} ids"),
        ("fingerprint", tokenizer.fingerprint),
        ("samples", f"{spec.sequence_length:,} tokens of {spec.dtype}"),
        ("shards", f"up to {size_text(spec.shard_size)}, compression {spec.compression}"),
        ("holdout", holdout if spec.holdout_fraction else "none"),
    ]
