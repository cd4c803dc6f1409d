"""The outcome of `shardmill verify` on the terminal."""

from collections.abc import Iterable
from itertools import groupby

from rich.console import Console
from rich.text import Text

from flows.terminal.visible import bytes_text, counted, visible
from tasks.core.check.findings import Finding, Report


def show_findings(findings: Iterable[Finding], console: Console) -> None:
    """Each file that something is wrong with, and what."""
    for file, of_file in groupby(sorted(findings), key=lambda finding: finding.file):
        console.print(Text(visible(file), style="bold red"), soft_wrap=True)
        for finding in of_file:
            console.print(Text(f"  {visible(finding.problem)}"), soft_wrap=True)


def show_report(report: Report, console: Console) -> None:
    """The findings, and one paragraph on what was looked at."""
    show_findings(report.findings, console)
    checked = report.checked
    files = len({finding.file for finding in report.findings})
    verdict = (
        Text("sound", style="bold green")
        if report.sound
        else Text(
            f"{counted(len(report.findings), 'finding')} in {counted(files, 'file')}",
            style="bold red",
        )
    )
    rate = checked.bytes / 1e6 / report.seconds if report.seconds else 0.0
    lines = [
        Text.assemble(visible(report.dataset), ": ", verdict),
        Text(
            f"  read {counted(checked.files, 'file')} of {counted(report.parts, 'part')}, "
            f"{bytes_text(checked.bytes)} in {report.seconds:.1f} s ({rate:,.0f} MB/s): "
            f"{counted(checked.shards, 'shard')}, {counted(checked.samples, 'sample')}, "
            f"{counted(checked.documents, 'document')}, {counted(checked.tokens, 'token')}"
        ),
    ]
    if checked.bad_documents:
        bad = counted(checked.bad_documents, "document")
        lines.append(Text(f"  {bad} left out when it was made, for they cannot be read"))
    if checked.duplicates:
        lines.append(Text(f"  {counted(checked.duplicates, 'document')} left out as copies"))
    if report.deep:
        lines.append(Text(f"  {_compared(report)}"))
    for line in lines:
        console.print(line, soft_wrap=True)


def _compared(report: Report) -> str:
    """What was compared with the sources, and what was not."""
    checked = report.checked
    chosen_by, done = "hash of the text", "tokenized again by the reference"
    if report.imported:
        chosen_by, done = "hash of its ids", "read again"
    told = (
        f"compared with {counted(checked.sources, 'source file')}: the holdout side of "
        f"{counted(checked.source_rows, 'row')} by the {chosen_by}; of "
        f"{counted(report.asked, 'document')} asked for {checked.retokenized:,} "
        f"({counted(checked.retokenized_tokens, 'token')}) {done}"
    )
    if checked.retokenized < report.asked:
        told += (
            ", all there are"
            if checked.retokenized == checked.documents
            else ", the others are too long for that or in damaged files, or there are no more"
        )
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
