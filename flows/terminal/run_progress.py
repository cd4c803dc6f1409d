"""The progress of a run on the terminal, and its summary at the end."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from flows.stops import stops_held
from flows.terminal.printing import (
    bytes_text,
    count_text,
    counted,
    duration_text,
    in_notebook,
    parts_text,
    say,
    show_facts,
    time_text,
)
from streaming_ext.format.layout import DUPLICATES_FOLDER
from streaming_ext.format.manifest import Manifest
from tasks.core.reporting.progress import Snapshot
from tasks.core.reporting.report import RunReport

_SHOWN = 5  # sources without a document
_LINE_SECONDS = 10.0  # between two lines, if the output is no terminal
_CELL_SECONDS = 1.0  # between two updates in a notebook
_CELL_WIDTH = 60  # characters of the bar in a notebook
LINE_SECONDS = "SHARDMILL_LINE_SECONDS"  # environment variable that overrides these, for tests
_log = logging.getLogger("shardmill")


@contextmanager
def shown(snapshot: Callable[[], Snapshot], console: Console) -> Iterator[None]:
    """Show the progress as a bar in a terminal or notebook, else as a line every few seconds.

    The lines also go to the log file.

    Args:
        snapshot: a function that returns the current counters.
        console: the console to print to.
    """
    ended = threading.Event()
    cell = _cell() if in_notebook else None

    def print_lines() -> None:
        usual = _LINE_SECONDS if cell is None else _CELL_SECONDS
        seconds = float(os.environ.get(LINE_SECONDS) or usual)
        while not ended.wait(seconds):
            now = snapshot()
            line = describe(now)
            _log.info("%s", line)
            if cell is not None:
                done = round(_CELL_WIDTH * now.source_bytes / max(now.source_bytes_total, 1))
                cell(f"{line}\n{'━' * done}{'┈' * (_CELL_WIDTH - done)}")
            elif not console.is_terminal:
                console.print(line, markup=False, soft_wrap=True)

    thread = threading.Thread(target=print_lines, daemon=True)
    bar = Live(
        get_renderable=lambda: _bar(snapshot(), console.width),
        console=console,
        refresh_per_second=4,
        transient=True,
    )
    try:
        with stops_held():  # these threads never take signals, which are for the main thread
            thread.start()
            bar.start(refresh=True)
        yield
    finally:
        bar.stop()
        ended.set()
        thread.join()
        if cell is not None:
            cell("")


def _cell() -> Callable[[str], None]:
    """Return a function that shows a text in a notebook's cell, in place of the previous text."""
    from IPython.display import display  # every notebook has IPython

    handle = display({"text/plain": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
    return lambda text: handle.update({"text/plain": text}, raw=True)


def describe(now: Snapshot) -> str:
    """Describe the progress in one line: phase, parts, time left, tokens, rate.

    A narrow terminal cuts off the end of the line.
    """
    if not now.parts_total:
        return now.phase
    failed = f", {now.parts_failed} failed" if now.parts_failed else ""
    seconds = now.seconds_left
    left = ", time left unknown" if seconds is None else f", {duration_text(seconds)} left"
    if now.stopped or now.parts_done + now.parts_failed == now.parts_total:
        left = ""
    return (
        f"{now.phase}: {now.parts_done}/{now.parts_total} parts{failed}{left}, "
        f"{count_text(now.tokens)} tokens, {now.bytes_per_second / 1e6:.1f} MB/s"
    )


def _bar(now: Snapshot, width: int) -> RenderableType:
    total = max(now.source_bytes_total, 1)
    pulse = now.source_bytes_total == 0
    bar = ProgressBar(total=total, completed=now.source_bytes, pulse=pulse, width=min(width, 60))
    line = Text(describe(now), no_wrap=True, overflow="ellipsis")
    return Group(line, bar)


def show_report(report: RunReport, console: Console, *, page: str | None = None) -> None:
    """Show the summary of a run, and the parts that failed.

    Args:
        report: the report of the run.
        console: the console to print to.
        page: the path of the report with pictures.
    """
    facts = [("parts", parts_text(report))]
    if is_text := report.engine is not None:  # otherwise nothing was tokenized
        facts += [("engine", str(report.engine)), ("text", bytes_text(report.text_bytes))]
    facts.append(("tokens", f"{report.tokens:,}"))
    if report.tokens and is_text:
        facts.append(("bytes per token", f"{report.bytes_per_token:.3f}"))
    if report.merged:
        merged, took = counted(len(report.merged), "part"), time_text(report.merge_seconds)
        facts.append(("second phase", f"{merged} merged, {took}"))
    facts.append(("written", bytes_text(report.shard_bytes)))
    done = report.text_bytes if is_text else report.shard_bytes
    rate = done / 1e6 / report.seconds if report.seconds else 0.0
    facts.append(("time", f"{time_text(report.seconds)} ({rate:,.1f} MB/s)"))
    if page is not None:
        facts.append(("report", page))
    show_facts(facts, console)
    show_failures(report, console)


def show_failures(report: RunReport, console: Console) -> None:
    """Show each part that failed, with the reason."""
    for failed in report.failed:
        say(console, f"FAILED {failed}", style="red")


def show_published(manifest: Manifest, path: str, console: Console) -> None:
    """Show the contents of a dataset, and the rows that it left out."""
    spec, splits = manifest.spec, sorted(manifest.splits.items())
    samples = ", ".join(f"{name} {counted(split.samples, 'sample')}" for name, split in splits)
    parts, tokens = counted(len(manifest.parts), "part"), counted(manifest.tokens, "token")
    lines = [f"{path}: {parts}, {tokens}; {samples}"]
    if manifest.not_checked:
        files = counted(manifest.not_checked, "source file")
        lines.append(
            f"{files} not checked: the store has no hash of them (docs/operate/storage.md)."
        )
    counts = manifest.row_counts
    if counts.left_out:
        listed = "; `shardmill inspect` lists the unreadable ones" if counts.bad_documents else ""
        rows = counted(counts.rows, "row")
        lines.append(f"left out of {rows}: {counts.left_out_text}{listed}.")
    silent = [part.made_of_text for part in manifest.parts if 0 < part.rows == part.left_out]
    if silent:
        more = f" and {len(silent) - _SHOWN:,} more" if len(silent) > _SHOWN else ""
        lines.append(f"no document is left of {', '.join(silent[:_SHOWN])}{more}.")
    if spec.lists_copies:
        copies = counted(manifest.duplicate_documents, "document")
        tokens = counted(manifest.duplicate_tokens, "token")
        lines.append(f"{copies} of {tokens} left out as copies; {DUPLICATES_FOLDER}/ lists them.")
    held = f"{spec.holdout_fraction:.4%} held out"
    empty = set(spec.splits) - set(manifest.splits)
    for line in [*lines, *(f"The split {split} is empty: {held}." for split in empty)]:
        say(console, line)
