"""What a person sees in the terminal while a run goes on, and when it has ended."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from flows.terminal.columns import show_facts
from flows.terminal.visible import bytes_text, count_text, counted, duration_text, say
from streaming_ext.format.layout import DUPLICATES_FOLDER
from streaming_ext.format.manifest import Manifest
from tasks.core.reporting.progress import Snapshot
from tasks.core.reporting.report import RunReport

_LINE_SECONDS = 10.0  # between two lines where the output is no terminal
LINE_SECONDS = "SHARDMILL_LINE_SECONDS"  # variable that sets others, for tests


_log = logging.getLogger("shardmill")


class HasSnapshot(Protocol):
    """A run here or elsewhere that tells how far it is."""

    def snapshot(self) -> Snapshot:
        """The counters as they are now."""
        ...


@contextmanager
def shown(progress: HasSnapshot, console: Console) -> Iterator[None]:
    """Show how far a run is: a bar that moves, or now and then a line where nobody watches.

    The lines are logged too, for who keeps a log file.
    """
    ended = threading.Event()

    def lines() -> None:
        seconds = float(os.environ.get(LINE_SECONDS) or _LINE_SECONDS)
        while not ended.wait(seconds):
            line = describe(progress.snapshot())
            _log.info("%s", line)
            if not console.is_terminal:
                console.print(line, markup=False, soft_wrap=True)

    thread = threading.Thread(target=lines, daemon=True)
    thread.start()
    try:
        if console.is_terminal:
            with Live(
                get_renderable=lambda: _bar(progress.snapshot(), console.width),
                console=console,
                refresh_per_second=4,
                transient=True,
            ):
                yield
        else:
            yield
    finally:
        ended.set()
        thread.join()


def describe(now: Snapshot, *, width: int | None = None) -> str:
    """One line: phase, parts, tokens, rate, time left.

    Args:
        now: what to tell.
        width: columns that there are; the rate is left out first where they are too few, then the
            tokens, then the time.
    """
    if not now.parts_total:
        return now.phase
    failed = f", {now.parts_failed} failed" if now.parts_failed else ""
    parts = f"{now.phase}: {now.parts_done}/{now.parts_total} parts{failed}"
    tokens = f"{count_text(now.tokens)} tokens"
    rate = f"{now.bytes_per_second / 1e6:.1f} MB/s"
    seconds = now.seconds_left
    ended = now.stopped or now.parts_done + now.parts_failed == now.parts_total
    left = "time left unknown" if seconds is None else f"{duration_text(seconds)} left"
    last = [] if ended else [left]
    choices = ([parts, tokens, rate, *last], [parts, tokens, *last], [parts, *last], [parts])
    lines = [", ".join(choice) for choice in choices]
    return next((line for line in lines if width is None or len(line) <= width), parts)


def _bar(now: Snapshot, width: int) -> RenderableType:
    total = max(now.source_bytes_total, 1)
    pulse = now.source_bytes_total == 0
    bar = ProgressBar(total=total, completed=now.source_bytes, pulse=pulse, width=min(width, 60))
    line = Text(describe(now, width=width), no_wrap=True, overflow="ellipsis")
    return Group(line, bar)


def show_report(report: RunReport, console: Console, *, page: str | None = None) -> None:
    """The summary of a run that has ended: what was done, what failed and why.

    Args:
        report: of the run.
        console: to print to.
        page: where the report with pictures lies.
    """
    facts = [("parts", f"{report.files_done} done, {report.files_skipped} done before")]
    if is_text := report.engine is not None:  # else ids are written as they were
        facts.append(("text", bytes_text(report.text_bytes)))
    facts.append(("tokens", f"{report.tokens:,}"))
    if report.tokens and is_text:
        facts.append(("bytes a token", f"{report.bytes_per_token:.3f}"))
    if report.merged:
        tokens = sum(times.tokens for times in report.merged)
        took = duration_text(report.merge_seconds)
        parts = counted(len(report.merged), "part")
        facts.append(("second phase", f"{parts} put together, {counted(tokens, 'token')}, {took}"))
    facts.append(("written", bytes_text(report.shard_bytes)))
    done = report.text_bytes if is_text else report.shard_bytes
    rate = done / 1e6 / report.work_seconds if report.work_seconds else 0.0
    facts.append(("time", f"{duration_text(report.seconds)} ({rate:,.1f} MB/s)"))
    if page is not None:
        facts.append(("report", page))
    show_facts(facts, console)
    show_failures(report, console)


def show_failures(report: RunReport, console: Console) -> None:
    """Each part that failed, and why."""
    for failed in report.failed:
        say(console, f"FAILED {failed}", style="red")


def show_published(manifest: Manifest, where: str, console: Console) -> None:
    """What the dataset is that there is now, and what is not in it."""
    spec, splits = manifest.spec, sorted(manifest.splits.items())
    samples = ", ".join(f"{name} {counted(split.samples, 'sample')}" for name, split in splits)
    parts, tokens = counted(len(manifest.parts), "part"), counted(manifest.tokens, "token")
    say(console, f"{where}: {parts}, {tokens}; {samples}")
    if manifest.not_checked:
        say(
            console,
            f"{counted(manifest.not_checked, 'source file')} not checked on the way: where they "
            "lie no hash of the bytes that were read is offered (docs/operate/storage.md).",
        )
    if manifest.bad_documents:
        say(
            console,
            f"{counted(manifest.bad_documents, 'document')} left out, for they cannot be read; "
            "`shardmill inspect` says where they stand.",
        )
    if spec.deduplicate is not None:
        say(
            console,
            f"{counted(manifest.duplicate_documents, 'document')} of "
            f"{counted(manifest.duplicate_tokens, 'token')} left out as copies; "
            f"{DUPLICATES_FOLDER}/ lists them.",
        )
    for split in set(spec.splits) - set(manifest.splits):
        held = f"{spec.holdout_fraction:.4%} held out"
        say(console, f"The split {split} is empty ({held}), so there is none.")
