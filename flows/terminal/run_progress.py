"""What a person sees in the terminal while a run goes on, and when it has ended."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flows.terminal.visible import count_text, duration_text, visible
from streaming_ext.dataset.manifest import Manifest
from tasks.core.reporting.progress import RunProgress, Snapshot
from tasks.core.reporting.report import RunReport

_LINE_SECONDS = 10.0  # between two lines where the output is no terminal


@contextmanager
def shown(progress: RunProgress, console: Console) -> Iterator[None]:
    """Show how far a run is: a bar that moves, or now and then a line where nobody watches."""
    if console.is_terminal:
        with Live(
            get_renderable=lambda: _bar(progress.snapshot()),
            console=console,
            refresh_per_second=4,
            transient=True,
        ):
            yield
        return
    ended = threading.Event()

    def lines() -> None:
        while not ended.wait(_LINE_SECONDS):
            console.print(describe(progress.snapshot()), markup=False, soft_wrap=True)

    thread = threading.Thread(target=lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def describe(now: Snapshot) -> str:
    """One line: phase, files, tokens, rate, time left."""
    if not now.files_total:
        return now.phase
    failed = f", {now.files_failed} failed" if now.files_failed else ""
    left = now.seconds_left
    return (
        f"{now.phase}: {now.files_done}/{now.files_total} files{failed}, "
        f"{count_text(now.tokens)} tokens, {now.bytes_per_second / 1e6:.1f} MB/s, "
        f"{'time left unknown' if left is None else f'{duration_text(left)} left'}"
    )


def _bar(now: Snapshot) -> RenderableType:
    total = max(now.source_bytes_total, 1)
    pulse = now.source_bytes_total == 0
    bar = ProgressBar(total=total, completed=now.source_bytes, pulse=pulse, width=60)
    return Group(Text(describe(now)), bar)


def show_report(report: RunReport, console: Console, *, page: str | None = None) -> None:
    """The summary of a run that has ended: what was done, what failed and why.

    Args:
        report: of the run.
        console: to print to.
        page: where the report with pictures lies.
    """
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("files", f"{report.files_done} done, {report.files_skipped} done before")
    table.add_row("text", f"{report.text_bytes / 1e6:,.1f} MB")
    table.add_row("tokens", f"{report.tokens:,}")
    if report.tokens:
        table.add_row("bytes a token", f"{report.text_bytes / report.tokens:.3f}")
    table.add_row("shards", f"{report.shard_bytes / 1e6:,.1f} MB")
    table.add_row(
        "time", f"{duration_text(report.seconds)} ({report.megabytes_per_second:.1f} MB/s)"
    )
    if page is not None:
        table.add_row("report", Text(visible(page)))
    console.print(table)
    for failed in report.failed:
        console.print(f"FAILED {visible(str(failed))}", style="red", markup=False, soft_wrap=True)


def show_published(manifest: Manifest, where: str, console: Console) -> None:
    """One line on the dataset that there is now."""
    splits = ", ".join(
        f"{name} {split.samples:,} samples" for name, split in sorted(manifest.splits.items())
    )
    console.print(
        f"{visible(where)}: {len(manifest.parts)} parts, {manifest.tokens:,} tokens; {splits}",
        markup=False,
        soft_wrap=True,
    )
    for split in manifest.spec.splits:
        if split not in manifest.splits:
            share = f"{manifest.spec.holdout_fraction:.4%} held out"
            console.print(f"The split {split} is empty ({share}), so there is none.")
