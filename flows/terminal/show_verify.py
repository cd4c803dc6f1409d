"""The outcome of `shardmill verify` on the terminal."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Console

from flows.terminal.visible import bytes_text, counted, say
from tasks.core.check.findings import DatasetReport, Finding


def show_findings(findings: Iterable[Finding], console: Console) -> None:
    """Each file that something is wrong with, and what."""
    for file, of_file in groupby(sorted(findings), key=lambda finding: finding.file):
        say(console, file, style="bold red")
        for finding in of_file:
            say(console, f"  {finding.problem}")


def show_check(
    place: str,
    findings: Sequence[Finding],
    looked_at: Iterable[str],
    console: Console,
    sound: str = "sound",
) -> None:
    """The findings, the verdict, and what was looked at."""
    show_findings(findings, console)
    files = len({finding.file for finding in findings})
    wrong = f"{counted(len(findings), 'finding')} in {counted(files, 'file')}"
    say(console, f"{place}: {wrong if findings else sound}", style="red" if findings else "green")
    for line in looked_at:
        say(console, f"  {line}")


def read_text(num_bytes: int, seconds: float) -> str:
    """How much was read, in which time, and how fast."""
    rate = num_bytes / 1e6 / seconds if seconds else 0.0
    return f"{bytes_text(num_bytes)} in {seconds:.1f} s ({rate:,.0f} MB/s)"


def show_report(report: DatasetReport, console: Console) -> None:
    """The findings, and one paragraph on what was looked at."""
    checked = report.checked
    files = f"{counted(checked.files, 'file')} of {counted(report.parts, 'part')}"
    counts = ", ".join(
        counted(getattr(checked, f"{noun}s"), noun)
        for noun in ("shard", "sample", "document", "token")
    )
    lines = [f"read {files}, {read_text(checked.bytes, report.seconds)}: {counts}"]
    if checked.bad_documents:
        bad = counted(checked.bad_documents, "document")
        lines.append(f"{bad} left out when it was made, for they cannot be read")
    if checked.duplicates:
        lines.append(f"{counted(checked.duplicates, 'document')} left out as copies")
    if report.deep:
        lines.append(_compared(report))
    show_check(report.dataset, report.findings, lines, console)


def _compared(report: DatasetReport) -> str:
    """What was compared with the sources, and what was not."""
    checked = report.checked
    chosen_by, done = "hash of the text", "tokenized again by the reference"
    if report.imported:
        chosen_by, done = "hash of its ids", "read again"
    told = (
        f"compared with {counted(checked.sources, 'source file')}: the holdout side of "
        f"{counted(checked.source_rows, 'row')} by the {chosen_by}; "
        f"{counted(checked.retokenized, 'document')} "
        f"({counted(checked.retokenized_tokens, 'token')}) {done}"
    )
    if checked.retokenized == checked.documents:
        told += ", all there are"
    elif checked.retokenized < report.asked:
        told += f", of {report.asked:,} asked for: the others are in damaged files"
    if checked.compared:
        told += (
            f"; the texts of {counted(checked.compared, 'document')} with each other, for copies"
        )
    if checked.unchecked:
        told += (
            f"; {counted(checked.unchecked, 'source file')} not checked on the way: the store "
            "offers no hash of the content"
        )
    return told
